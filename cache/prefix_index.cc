#include "cache/prefix_index.h"

#include <algorithm>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "cache/cache.h"

namespace berth {

// The tree after two prompts, "abcdefghij" and "abcdefxy", with blocks of 4 tokens:
//
//   root of the salt
//     +-- [abcd]         units; states after "ef", where the two prompts part
//           +-- [efgh]   units; states after "ij", where the first prompt ended
//           |     +-- [ij]   units; a short node is a leaf, and grows when a later prompt continues it
//           +-- [efxy]   units; states at its end
//
// States cannot be cut at any token, so a node lists where its states are: after its own tokens, or after those and a
// suffix shorter than a block. The suffix keeps states reachable when the short node after them has grown or is gone.
struct PrefixIndex::Node {
  struct State {
    std::vector<int32_t> suffix;  // tokens after the node's, fewer than a block
    int group = 0;
    UnitId unit;
  };

  Node* parent = nullptr;             // null: a root
  const std::string* salt = nullptr;  // a root's
  std::vector<int32_t> tokens;        // of its block
  std::vector<UnitId> units;          // by group; index -1: none
  std::vector<State> states;
  std::vector<Node*> children;  // by tokens, ascending
  int pins = 0;                 // of leases and callers; a pinned node is not deleted
  uint64_t id = 0;              // in the log's records; 0: its root is not watched

  bool holds_nothing() const {
    return pins == 0 && children.empty() && states.empty() &&
           std::all_of(units.begin(), units.end(), [](UnitId unit) { return unit.index < 0; });
  }
};

namespace {

int64_t CommonPrefix(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

// The order of a node's children.
constexpr auto kComesBefore = [](const auto* child, absl::Span<const int32_t> tokens) {
  return std::lexicographical_compare(child->tokens.begin(), child->tokens.end(), tokens.begin(), tokens.end());
};

// The number of states, not used for longest, that are compared before one is evicted.
constexpr int kStatesCompared = 32;
// The nodes that TokensToReplay walks up: further away, all states are equally far from those before them.
constexpr int kNodesWalked = 64;

int64_t Pack(int group, UnitId unit) { return static_cast<int64_t>(group) << 32 | unit.index; }

}  // namespace

PrefixIndex::PrefixIndex(Cache* cache, int64_t max_states) : cache_(cache), max_states_(max_states) {
  places_.resize(cache->plan().groups.size());
  num_evicted_.resize(cache->plan().groups.size());
}

PrefixIndex::~PrefixIndex() {
  for (auto& [salt, root] : roots_) {
    const std::vector<Node*> nodes = Below(root.get());
    std::for_each(nodes.begin() + 1, nodes.end(), std::default_delete<Node>());
  }
}

PrefixIndex::Node* PrefixIndex::Root(absl::string_view salt) {
  auto found = roots_.find(salt);
  if (found == roots_.end()) {
    found = roots_.emplace(std::string(salt), std::make_unique<Node>()).first;
    found->second->salt = &found->first;
    found->second->units.resize(cache_->plan().groups.size());
  }
  return Pin(found->second.get());
}

std::pair<PrefixIndex::Node*, int64_t> PrefixIndex::Closest(Node* node, absl::Span<const int32_t> tokens) const {
  // Children are sorted, so the one with the longest common prefix is next to the place of `tokens`.
  const std::vector<Node*>& children = node->children;
  const auto after = std::lower_bound(children.begin(), children.end(), tokens, kComesBefore);
  std::pair<Node*, int64_t> best = {nullptr, 0};
  const auto consider = [&](Node* child) {
    const int64_t common = CommonPrefix(tokens, child->tokens);
    if (common > best.second) best = {child, common};
  };
  if (after != children.end()) consider(*after);
  if (after != children.begin()) consider(*std::prev(after));
  return best;
}

// Walks down the closest children while whole blocks match. Without states, the match then shrinks until its blocks are
// all there: units are evicted one by one, so a path may have gaps. With states, it must end at states.
PrefixIndex::Match PrefixIndex::Find(Node* root, absl::Span<const int32_t> tokens, int64_t limit, int64_t multiple) {
  Match match;
  const int64_t block = cache_->plan().block_tokens;
  absl::Span<const int32_t> rest = tokens.first(limit);
  for (Node* node = root; !rest.empty();) {
    const auto [child, common] = Closest(node, rest.first(std::min<int64_t>(block, rest.size())));
    if (common == 0) break;
    match.path.push_back(child);
    match.matched_tokens += common;
    if (common < block) break;
    rest.remove_prefix(common);
    node = child;
  }
  if (cache_->plan().state_group() < 0) {
    int64_t length = match.matched_tokens / multiple * multiple;
    absl::InlinedVector<Run, 8> runs(cache_->plan().groups.size());
    while (length > 0 && !HasBlocks(match, length, absl::MakeSpan(runs)))
      length = (length - 1) / block * block / multiple * multiple;
    match.num_tokens = length;
  } else {
    FindState(root, tokens.first(limit), multiple, &match);
  }
  match.path.resize(std::min<size_t>(match.path.size(), (match.num_tokens + block - 1) / block));
  return match;
}

void PrefixIndex::FindState(Node* root, absl::Span<const int32_t> tokens, int64_t multiple, Match* match) const {
  const int64_t block = cache_->plan().block_tokens;
  absl::InlinedVector<Run, 8> runs(cache_->plan().groups.size());
  const auto look_at = [&](const Node* node, int64_t end) {
    for (const Node::State& state : node->states) {
      const int64_t suffix = static_cast<int64_t>(state.suffix.size());
      const int64_t length = end + suffix;
      if (length <= match->num_tokens || length > static_cast<int64_t>(tokens.size()) || length % multiple != 0)
        continue;
      if (CommonPrefix(tokens.subspan(end, suffix), state.suffix) < suffix) continue;
      if (!HasBlocks(*match, length, absl::MakeSpan(runs))) continue;
      match->num_tokens = length;
      match->state = state.unit;
    }
  };
  look_at(root, 0);
  for (size_t i = 0; i < match->path.size() && NumTokens(match->path[i]) == block; ++i) {
    const int64_t end = static_cast<int64_t>(i + 1) * block;
    if (end <= match->matched_tokens) look_at(match->path[i], end);
  }
  match->matched_tokens = std::max(match->matched_tokens, match->num_tokens);
}

// Scans from the end and skips the run found last: calls for ever shorter or ever longer sequences see a block once.
bool PrefixIndex::HasBlocks(const Match& match, int64_t length, absl::Span<Run> runs) const {
  const CachePlan& plan = cache_->plan();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    if (!plan.groups[g].grows()) continue;
    // A state may outlive its last block. The path then ends in a node that shares only a part of the block's tokens.
    if (length > match.matched_tokens) return false;
    const auto has = [&](int64_t b) { return match.path[b]->units[g].index >= 0; };
    const int64_t end = (length + plan.block_tokens - 1) / plan.block_tokens;
    const int64_t sinks = std::min(end, plan.groups[g].kv.SinkBlocks(plan.block_tokens));
    const int64_t first = sinks + plan.groups[g].kv.ExpiredBlocks(length, plan.block_tokens);
    int64_t begin = end;
    const auto in_run = [&] { return runs[g].begin < begin && begin <= runs[g].end; };
    while (begin > first && (in_run() || has(begin - 1))) begin = in_run() ? runs[g].begin : begin - 1;
    runs[g] = {.begin = begin, .end = end};
    bool has_all = begin <= first;
    for (int64_t b = 0; has_all && b < sinks; ++b) has_all = has(b);
    if (!has_all) return false;
  }
  return true;
}

PrefixIndex::Node* PrefixIndex::Reach(Node* parent, absl::Span<const int32_t> tokens) {
  auto [node, common] = Closest(parent, tokens);
  if (common == static_cast<int64_t>(tokens.size())) {
    ++node->pins;
    return node;
  }
  if (node != nullptr && common == static_cast<int64_t>(node->tokens.size())) {
    // The node grows. Its units may lack the new tokens, so they are evicted and the caller adds its own.
    ++node->pins;
    for (int g = 0; g < static_cast<int>(node->units.size()); ++g) {
      if (node->units[g].index >= 0) Evict(g, node->units[g]);
    }
    parent->children.erase(std::find(parent->children.begin(), parent->children.end(), node));
    Log({.kind = PrefixLog::Kind::kGrown, .node = node->id, .tokens = tokens});
  } else {
    node = new Node();
    node->parent = parent;
    node->id = parent->id == 0 ? 0 : ++last_id_;
    Log({.kind = PrefixLog::Kind::kNode, .node = node->id, .parent = parent->id, .tokens = tokens});
    node->units.resize(cache_->plan().groups.size());
    ++node->pins;
    ++num_nodes_;
  }
  std::vector<Node*>& children = parent->children;
  children.insert(std::lower_bound(children.begin(), children.end(), tokens, kComesBefore), node);
  node->tokens.assign(tokens.begin(), tokens.end());
  return node;
}

PrefixIndex::Node* PrefixIndex::Pin(Node* node) {
  ++node->pins;
  return node;
}

int64_t PrefixIndex::NumTokens(const Node* node) { return static_cast<int64_t>(node->tokens.size()); }

UnitId PrefixIndex::UnitOf(const Node* node, int group) { return node->units[group]; }

void PrefixIndex::Unpin(Node* node) {
  if (node == nullptr) return;
  --node->pins;
  Prune(node);
}

void PrefixIndex::Prune(Node* node) {
  while (node->parent != nullptr && node->holds_nothing()) {
    Node* parent = node->parent;
    parent->children.erase(std::find(parent->children.begin(), parent->children.end(), node));
    Log({.kind = PrefixLog::Kind::kGone, .node = node->id});
    delete node;
    --num_nodes_;
    node = parent;
  }
  if (node->parent == nullptr && node->holds_nothing()) roots_.erase(roots_.find(*node->salt));
}

void PrefixIndex::AddUnit(Node* node, int group, UnitId unit) {
  if (node->units[group].index >= 0 || cache_->pools_[group].cached(unit)) return;
  node->units[group] = unit;
  Add(node, group, unit);
  Log({.kind = PrefixLog::Kind::kUnit, .node = node->id, .number = group});
}

void PrefixIndex::AddState(Node* node, absl::Span<const int32_t> suffix, int group, UnitId unit) {
  if (cache_->pools_[group].cached(unit) || HasState(node, suffix) || max_states_ == 0) return;
  while (states_.size >= max_states_) EvictState();
  node->states.push_back({.suffix = {suffix.begin(), suffix.end()}, .group = group, .unit = unit});
  Add(node, group, unit);
  Log({.kind = PrefixLog::Kind::kState, .node = node->id, .number = unit.index, .tokens = suffix});
  PlaceOf(group, unit).used = ++num_added_;
  PushNewest(Pack(group, unit), &states_);
}

bool PrefixIndex::HasState(const Node* node, absl::Span<const int32_t> suffix) {
  return std::any_of(node->states.begin(), node->states.end(),
                     [&](const Node::State& state) { return absl::MakeConstSpan(state.suffix) == suffix; });
}

void PrefixIndex::Add(Node* node, int group, UnitId unit) {
  std::vector<Place>& places = places_[group];
  if (unit.index >= static_cast<int32_t>(places.size())) places.resize(unit.index + 1);
  places[unit.index] = {.node = node, .unit = unit};
  cache_->SetCached(group, unit);
}

PrefixIndex::Place& PrefixIndex::PlaceOf(int group, UnitId unit) {
  Place& place = places_[group][unit.index];
  if (place.node == nullptr || place.unit != unit) ABSL_RAW_LOG(FATAL, "the index does not list unit %d", unit.index);
  return place;
}

void PrefixIndex::OnIdle(int group, UnitId unit) {
  Place& place = PlaceOf(group, unit);
  place.idle = true;
  PushNewest(Pack(group, unit), &idle_);
  Touch(group, unit);
}

void PrefixIndex::OnBusy(int group, UnitId unit) {
  Place& place = PlaceOf(group, unit);
  place.idle = false;
  Remove(Pack(group, unit), &idle_);
  Touch(group, unit);
}

void PrefixIndex::PushNewest(int64_t packed, RecencyList* list) {
  PlaceOf(packed).*list->links = {.older = list->newest, .newer = -1};
  (list->newest < 0 ? list->oldest : (PlaceOf(list->newest).*list->links).newer) = packed;
  list->newest = packed;
  ++list->size;
}

void PrefixIndex::Remove(int64_t packed, RecencyList* list) {
  const Links links = PlaceOf(packed).*list->links;
  (links.older < 0 ? list->oldest : (PlaceOf(links.older).*list->links).newer) = links.newer;
  (links.newer < 0 ? list->newest : (PlaceOf(links.newer).*list->links).older) = links.older;
  --list->size;
}

void PrefixIndex::Touch(int group, UnitId unit) {
  if (group != cache_->plan().kept_group()) return;
  Remove(Pack(group, unit), &states_);
  PushNewest(Pack(group, unit), &states_);
  PlaceOf(group, unit).used = num_added_;
}

// What a state is worth: the tokens that its loss would replay, over its age. So old states are thinned, the closest
// ones first, and what is left of a long path is spread over it. The age counts states that were added since.
void PrefixIndex::EvictState() {
  int64_t worst = -1;
  int64_t worst_tokens = 0;
  int64_t worst_age = 1;
  int64_t at = states_.oldest;
  for (int i = 0; i < kStatesCompared && at >= 0; ++i, at = PlaceOf(at).state_links.newer) {
    const Place& place = PlaceOf(at);
    const int64_t tokens = TokensToReplay(place);
    const int64_t age = num_added_ - place.used + 1;
    if (worst >= 0 && tokens * worst_age >= worst_tokens * age) continue;
    worst = at;
    worst_tokens = tokens;
    worst_age = age;
  }
  const int group = static_cast<int>(worst >> 32);
  ++num_evicted_[group];
  Evict(group, PlaceOf(worst).unit);
}

int64_t PrefixIndex::TokensToReplay(const Place& place) const {
  const Node* node = place.node;
  const auto own = std::find_if(node->states.begin(), node->states.end(),
                                [&](const Node::State& state) { return state.unit == place.unit; });
  absl::Span<const int32_t> below = own->suffix;  // the path's tokens after `node`
  int64_t distance = static_cast<int64_t>(below.size());
  for (int i = 0; i < kNodesWalked; ++i) {
    int64_t nearest = -1;
    for (const Node::State& state : node->states) {
      const int64_t suffix = static_cast<int64_t>(state.suffix.size());
      if (&state != &*own && CommonPrefix(below, state.suffix) == suffix) nearest = std::max(nearest, suffix);
    }
    if (nearest >= 0) return distance - nearest;
    if (node->parent == nullptr) break;
    below = node->tokens;
    distance += NumTokens(node);
    node = node->parent;
  }
  return distance;
}

void PrefixIndex::Evict(int group, UnitId unit) {
  Place& place = PlaceOf(group, unit);
  if (place.idle) Remove(Pack(group, unit), &idle_);
  if (group == cache_->plan().kept_group()) Remove(Pack(group, unit), &states_);
  place.idle = false;
  Node* const node = std::exchange(place.node, nullptr);
  if (node->units[group] == unit) {
    node->units[group] = UnitId();
    Log({.kind = PrefixLog::Kind::kUnitGone, .node = node->id, .number = group});
  } else {
    Log({.kind = PrefixLog::Kind::kStateGone, .node = node->id, .number = unit.index});
    std::erase_if(node->states, [&](const Node::State& state) { return state.group == group && state.unit == unit; });
  }
  cache_->DropCached(group, unit);
  Prune(node);
}

void PrefixIndex::Empty(Node* node) {
  ++node->pins;
  for (int g = 0; g < static_cast<int>(node->units.size()); ++g) {
    if (node->units[g].index >= 0) Evict(g, node->units[g]);
  }
  while (!node->states.empty()) Evict(node->states.back().group, node->states.back().unit);
  --node->pins;
}

void PrefixIndex::Forget(Node* node, absl::Span<const int32_t> tokens) {
  const std::vector<Node*> nodes = Below(node, tokens);
  // A node without units would go with the last of its children.
  for (Node* at : nodes) Pin(at);
  for (Node* up = node->parent; up != nullptr; up = up->parent) Empty(up);
  for (auto at = nodes.rbegin(); at != nodes.rend(); ++at) {
    Empty(*at);
    Unpin(*at);
  }
}

void PrefixIndex::ForgetAll(std::optional<absl::string_view> salt) {
  std::vector<Node*> roots;
  for (const auto& [name, root] : roots_) {
    if (!salt || name == *salt) roots.push_back(root.get());
  }
  for (Node* root : roots) Forget(root, {});
}

std::vector<PrefixIndex::Node*> PrefixIndex::Below(Node* node, absl::Span<const int32_t> tokens) {
  std::vector<Node*> nodes = {node};
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (Node* child : nodes[i]->children) {
      const size_t size = i > 0 ? 0 : std::min(tokens.size(), child->tokens.size());
      if (std::equal(tokens.begin(), tokens.begin() + size, child->tokens.begin())) nodes.push_back(child);
    }
  }
  return nodes;
}

std::vector<int32_t> PrefixIndex::Watch(absl::string_view salt, std::shared_ptr<PrefixLog> log) {
  log_ = std::move(log);
  log_->Restart();
  Node* const root = Root(salt);
  if (root->id != 0) --root->pins;  // it has the pin of the former watch
  std::vector<int32_t> words;
  for (Node* node : Below(root)) {
    node->id = ++last_id_;
    PrefixLog::Write({.kind = PrefixLog::Kind::kNode,
                      .node = node->id,
                      .parent = node->parent == nullptr ? 0 : node->parent->id,
                      .tokens = node->tokens},
                     &words);
    for (int g = 0; g < static_cast<int>(node->units.size()); ++g) {
      if (node->units[g].index < 0) continue;
      PrefixLog::Write({.kind = PrefixLog::Kind::kUnit, .node = node->id, .number = g}, &words);
    }
    for (const Node::State& state : node->states) {
      PrefixLog::Write(
          {.kind = PrefixLog::Kind::kState, .node = node->id, .number = state.unit.index, .tokens = state.suffix},
          &words);
    }
  }
  return words;
}

void PrefixIndex::Unwatch(absl::string_view salt) {
  const auto found = roots_.find(salt);
  if (found == roots_.end() || found->second->id == 0) return;
  for (Node* node : Below(found->second.get())) node->id = 0;
  Unpin(found->second.get());
}

bool PrefixIndex::EvictOldest() {
  if (idle_.oldest < 0) return false;
  const int group = static_cast<int>(idle_.oldest >> 32);
  ++num_evicted_[group];
  Evict(group, PlaceOf(idle_.oldest).unit);
  return true;
}

absl::Status PrefixIndex::CheckStates(int64_t num_states) const {
  int64_t listed = 0;
  for (int64_t at = states_.oldest; at >= 0; at = PlaceOf(at).state_links.newer) ++listed;
  if (listed == num_states && listed == states_.size && listed <= max_states_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the index holds ", num_states, " states, lists ", listed, " and counts ",
                                          states_.size, "; at most ", max_states_, " may be kept"));
}

absl::Status PrefixIndex::CheckIntegrity() const {
  const int64_t block = cache_->plan().block_tokens;
  std::vector<int64_t> listed(places_.size(), 0);
  int64_t num_nodes = 0, num_states = 0;
  absl::Status status;
  const auto check = [&](int group, UnitId unit, const Node* node) {
    const Place& place = places_[group][unit.index];
    const UnitPool& pool = cache_->pools_[group];
    ++listed[group];
    if (place.node != node || place.unit != unit || !pool.live(unit) || !pool.cached(unit) ||
        place.idle != (pool.num_leases(unit) == 0)) {
      status = absl::InternalError(absl::StrCat("the index lists unit ", unit.index, " of group ", group, " wrongly"));
    }
  };
  const auto check_node = [&](const Node* node) {
    for (const Node::State& state : node->states) check(state.group, state.unit, node);
    num_states += static_cast<int64_t>(node->states.size());
    for (const Node* child : node->children) {
      ++num_nodes;
      const int64_t count = static_cast<int64_t>(child->tokens.size());
      const bool misplaced = child->parent != node || (child->id != 0) != (node->id != 0) || count < 1 ||
                             count > block || (count < block && !child->children.empty());
      if (misplaced || child->holds_nothing()) {
        status = absl::InternalError(absl::StrCat("the index has a node of ", count, " tokens that should not be"));
      }
      for (size_t g = 0; g < child->units.size(); ++g) {
        if (child->units[g].index >= 0) check(static_cast<int>(g), child->units[g], child);
      }
    }
    for (size_t i = 1; i < node->children.size(); ++i) {
      if (node->children[i - 1]->tokens < node->children[i]->tokens) continue;
      status = absl::InternalError("a node's children are not in order");
    }
  };
  for (const auto& [salt, root] : roots_) {
    for (const Node* node : Below(root.get())) check_node(node);
  }
  if (!status.ok()) return status;
  if (num_nodes != num_nodes_) {
    return absl::InternalError(absl::StrCat("the index counts ", num_nodes_, " nodes and has ", num_nodes));
  }
  if (absl::Status s = CheckStates(num_states); !s.ok()) return s;
  std::vector<int64_t> idle(places_.size(), 0);
  for (int64_t at = idle_.oldest; at >= 0; at = PlaceOf(at).links.newer) ++idle[at >> 32];
  for (size_t g = 0; g < places_.size(); ++g) {
    if (idle[g] != cache_->pools_[g].cached_units()) {
      return absl::InternalError(absl::StrCat("group ", g, ": ", idle[g], " idle units are listed, the pool holds ",
                                              cache_->pools_[g].cached_units()));
    }
  }
  return absl::OkStatus();
}

}  // namespace berth
