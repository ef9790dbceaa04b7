#include "cache/prefix_mirror.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace berth {

struct PrefixMirror::Node {
  struct State {
    int32_t number = 0;
    std::vector<int32_t> suffix;
  };

  uint64_t id = 0;
  Node* parent = nullptr;
  std::vector<Node*> children;
  std::vector<int32_t> tokens;
  std::vector<State> states;
  absl::InlinedVector<Run, 4> runs;  // by group
  int64_t end = 0;                   // tokens of the path up to and with this node
  uint64_t hash = 0;                 // of those tokens; 0: the root
  bool full = false;                 // has as many tokens as a block
  bool start = false;                // a sequence can start here: at the end, or at states after it
  int64_t num_ways = 0;              // `start`, and each child that has ways
  bool told = false;                 // by TakeChanges, as usable
  bool fresh = false;                // while TakeChanges runs: it is to be told

  bool usable() const { return num_ways > 0 && full; }
};

namespace {

uint64_t HashOf(uint64_t parent_hash, absl::Span<const int32_t> tokens) {
  uint64_t hash = parent_hash + 0x9E3779B97F4A7C15u;
  for (int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 29;
  }
  hash = (hash ^ hash >> 32) * 0x94D049BB133111EBu;
  hash ^= hash >> 31;
  return hash == 0 ? 1 : hash;
}

bool StartsWith(absl::Span<const int32_t> tokens, absl::Span<const int32_t> prefix) {
  return tokens.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
}

}  // namespace

PrefixMirror::PrefixMirror(const CachePlan& plan, int64_t multiple)
    : block_tokens_(plan.block_tokens), multiple_(multiple), has_states_(plan.state_group() >= 0) {
  for (int g = 0; g < static_cast<int>(plan.groups.size()); ++g) {
    if (!plan.groups[g].grows()) continue;
    const KvSpec& kv = plan.groups[g].kv;
    const int64_t max_run = kv.Reach() == 0 ? std::numeric_limits<int64_t>::max()
                                            : kv.SinkBlocks(block_tokens_) + kv.Reach() / block_tokens_ + 2;
    groups_.push_back({.kv = kv, .max_run = max_run, .number = g});
  }
}

PrefixMirror::~PrefixMirror() = default;

PrefixMirror::Node* PrefixMirror::Find(uint64_t id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : found->second.get();
}

void PrefixMirror::Reset(absl::Span<const int32_t> words) {
  for (const auto& [id, node] : nodes_) {
    if (node->told) gone_.insert(node->hash);
  }
  nodes_.clear();
  touched_.clear();
  root_ = nullptr;
  while (!words.empty()) Apply(PrefixLog::Read(&words));
}

void PrefixMirror::Apply(const PrefixLog::Record& record) {
  if (record.kind == PrefixLog::Kind::kNode) return AddNode(record);
  Node* const node = Find(record.node);
  if (node == nullptr) return;
  switch (record.kind) {
    case PrefixLog::Kind::kGrown:
      SetTokens(node, record.tokens);
      UpdateStart(node);
      UpdateStart(node->parent);
      break;
    case PrefixLog::Kind::kGone:
      Delete(node);
      break;
    case PrefixLog::Kind::kUnit:
    case PrefixLog::Kind::kUnitGone:
      SetHeld(node, record.number, record.kind == PrefixLog::Kind::kUnit);
      break;
    case PrefixLog::Kind::kState:
      node->states.push_back({.number = record.number, .suffix = {record.tokens.begin(), record.tokens.end()}});
      UpdateStart(node);
      break;
    case PrefixLog::Kind::kStateGone:
      std::erase_if(node->states, [&](const Node::State& state) { return state.number == record.number; });
      UpdateStart(node);
      break;
    case PrefixLog::Kind::kNode:
      break;
  }
}

void PrefixMirror::AddNode(const PrefixLog::Record& record) {
  Node* const parent = Find(record.parent);
  if (parent == nullptr && (record.parent != 0 || root_ != nullptr)) return;
  auto made = std::make_unique<Node>();
  Node* const node = made.get();
  node->id = record.node;
  node->parent = parent;
  node->runs.resize(groups_.size());
  nodes_.emplace(record.node, std::move(made));
  if (parent == nullptr) {
    root_ = node;
    for (Run& run : node->runs) run = {.held = true, .sinks_held = true};
    return;
  }
  parent->children.push_back(node);
  SetTokens(node, record.tokens);
  UpdateRuns(node);
}

void PrefixMirror::SetTokens(Node* node, absl::Span<const int32_t> tokens) {
  node->tokens.assign(tokens.begin(), tokens.end());
  node->end = node->parent->end + static_cast<int64_t>(tokens.size());
  node->hash = HashOf(node->parent->hash, tokens);
  node->full = static_cast<int64_t>(tokens.size()) == block_tokens_;
  touched_.push_back(node->id);
}

void PrefixMirror::Delete(Node* node) {
  if (node == root_) return;  // it stays as long as it is watched
  if (node->told) gone_.insert(node->hash);
  Node* const parent = node->parent;
  std::erase(parent->children, node);
  nodes_.erase(node->id);
  if (has_states_) UpdateStart(parent);
}

void PrefixMirror::SetHeld(Node* node, int32_t number, bool held) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].number != number) continue;
    node->runs[i].held = held;
    PassDown(node);
  }
}

void PrefixMirror::PassDown(Node* node) {
  std::vector<Node*> left = {node};
  while (!left.empty()) {
    Node* const at = left.back();
    left.pop_back();
    if (!UpdateRuns(at)) continue;
    UpdateStart(at);
    if (has_states_) UpdateStart(at->parent);  // whose states may need a part of this block
    left.insert(left.end(), at->children.begin(), at->children.end());
  }
}

bool PrefixMirror::UpdateRuns(Node* node) const {
  bool differs = false;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Run& before = node->parent->runs[i];
    Run& run = node->runs[i];
    Run next = {.held = run.held, .sinks_held = before.sinks_held};
    if (node->parent->end / block_tokens_ < groups_[i].kv.SinkBlocks(block_tokens_)) next.sinks_held &= run.held;
    if (run.held) next.length = std::min(groups_[i].max_run, before.length + 1);
    differs |= next != run;
    run = next;
  }
  return differs;
}

void PrefixMirror::UpdateStart(Node* node) {
  const bool start = IsStart(*node);
  if (start == node->start) return;
  node->start = start;
  int64_t difference = start ? 1 : -1;
  for (Node* at = node; at != nullptr; at = at->parent) {
    const bool had_ways = at->num_ways > 0;
    at->num_ways += difference;
    if ((at->num_ways > 0) == had_ways) break;
    touched_.push_back(at->id);
    difference = had_ways ? -1 : 1;
  }
}

// PrefixIndex::Find says where a sequence starts.
bool PrefixMirror::IsStart(const Node& node) const {
  if (!has_states_) return &node != root_ && node.end % multiple_ == 0 && HasBlocks(node, node.end);
  return std::any_of(node.states.begin(), node.states.end(), [&](const Node::State& state) {
    const int64_t length = node.end + static_cast<int64_t>(state.suffix.size());
    if (length % multiple_ != 0) return false;
    if (groups_.empty() || state.suffix.empty()) return HasBlocks(node, length);
    return std::any_of(node.children.begin(), node.children.end(), [&](const Node* child) {
      return StartsWith(child->tokens, state.suffix) && HasBlocks(*child, length);
    });
  });
}

bool PrefixMirror::HasBlocks(const Node& node, int64_t length) const {
  const int64_t end = (length + block_tokens_ - 1) / block_tokens_;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const int64_t expired = groups_[i].kv.ExpiredBlocks(length, block_tokens_);
    const int64_t first = expired == 0 ? 0 : groups_[i].kv.SinkBlocks(block_tokens_) + expired;
    if (node.runs[i].length < end - first) return false;
    if (expired > 0 && !node.runs[i].sinks_held) return false;
  }
  return true;
}

template <typename Wanted>
std::vector<PrefixMirror::Chain> PrefixMirror::Chains(std::vector<const Node*> heads, const Wanted& wanted) {
  std::vector<Chain> chains;
  while (!heads.empty()) {
    const Node* node = heads.back();
    heads.pop_back();
    Chain& chain = chains.emplace_back();
    chain.parent_hash = node->parent->hash;
    while (node != nullptr) {
      chain.hashes.push_back(node->hash);
      chain.tokens.insert(chain.tokens.end(), node->tokens.begin(), node->tokens.end());
      const Node* next = nullptr;
      for (const Node* child : node->children) {
        if (!wanted(*child)) continue;
        if (next != nullptr) heads.push_back(next);
        next = child;
      }
      node = next;
    }
  }
  return chains;
}

PrefixMirror::Changes PrefixMirror::TakeChanges() {
  Changes changes;
  std::vector<Node*> fresh;
  for (uint64_t id : touched_) {
    Node* const node = Find(id);
    if (node == nullptr || node->usable() == node->told) continue;
    node->told = node->usable();
    if (!node->told) {
      changes.removed.push_back(node->hash);
    } else if (gone_.erase(node->hash) == 0) {
      node->fresh = true;
      fresh.push_back(node);
    }
  }
  touched_.clear();
  changes.removed.insert(changes.removed.end(), gone_.begin(), gone_.end());
  gone_.clear();
  std::vector<const Node*> heads;
  for (const Node* node : fresh) {
    if (!node->parent->fresh) heads.push_back(node);
  }
  changes.stored = Chains(std::move(heads), [](const Node& node) { return node.fresh; });
  for (Node* node : fresh) node->fresh = false;
  num_usable_ += static_cast<int64_t>(fresh.size()) - static_cast<int64_t>(changes.removed.size());
  return changes;
}

std::vector<PrefixMirror::Chain> PrefixMirror::GetAll() const {
  if (root_ == nullptr) return {};
  const auto told = [](const Node& node) { return node.told; };
  std::vector<const Node*> heads;
  for (const Node* child : root_->children) {
    if (told(*child)) heads.push_back(child);
  }
  return Chains(std::move(heads), told);
}

}  // namespace berth
