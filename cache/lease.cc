#include "cache/lease.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cache/cache.h"
#include "cache/checkpoint.h"

namespace berth {

SequenceLease::SequenceLease(Cache* cache, uint64_t generation, int64_t num_cross_tokens)
    : cache_(cache),
      generation_(generation),
      num_cross_tokens_(num_cross_tokens),
      groups_(cache->plan().groups.size()) {
  cache_->leases_.insert(this);
}

SequenceLease::SequenceLease(SequenceLease&& other) noexcept { *this = std::move(other); }

SequenceLease& SequenceLease::operator=(SequenceLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  cache_ = std::exchange(other.cache_, nullptr);
  generation_ = std::exchange(other.generation_, 0);
  num_tokens_ = std::exchange(other.num_tokens_, 0);
  num_cross_tokens_ = std::exchange(other.num_cross_tokens_, 0);
  groups_ = std::exchange(other.groups_, {});
  snapshots_ = std::exchange(other.snapshots_, {});
  marks_ = std::exchange(other.marks_, {});
  root_ = std::exchange(other.root_, nullptr);
  cursor_ = std::exchange(other.cursor_, nullptr);
  published_blocks_ = std::exchange(other.published_blocks_, 0);
  room_until_ = std::exchange(other.room_until_, 0);
  expiry_stable_until_ = other.expiry_stable_until_;
  if (cache_ != nullptr) {
    cache_->leases_.erase(&other);
    cache_->leases_.insert(this);
  }
  return *this;
}

void SequenceLease::Release() {
  if (cache_ == nullptr) return;
  Reset();
  cache_->leases_.erase(this);
  cache_ = nullptr;
}

int64_t SequenceLease::SinkBlocks(int g) const {
  return cache_->plan().groups[g].kv.SinkBlocks(cache_->plan().block_tokens);
}

int64_t SequenceLease::ExpiredBlocks(int g, int64_t position) const {
  return cache_->plan().groups[g].kv.ExpiredBlocks(position, cache_->plan().block_tokens);
}

int64_t SequenceLease::EndUnit(int g, int64_t num_tokens) const {
  const CacheKind kind = cache_->plan().groups[g].kind;
  if (kind == CacheKind::kCross) num_tokens = num_cross_tokens_;
  if (num_tokens == 0 || kind == CacheKind::kCheckpoint) return 0;
  if (kind == CacheKind::kRecurrent) return 1;
  return (num_tokens + cache_->plan().block_tokens - 1) / cache_->plan().block_tokens;
}

bool SequenceLease::MustCopy(int g) const {
  const Group& group = groups_[g];
  if (!group.tail_shared || group.units.empty()) return false;
  const CacheKind kind = cache_->plan().groups[g].kind;
  if (kind == CacheKind::kCross || kind == CacheKind::kCheckpoint) return false;
  if (kind != CacheKind::kRecurrent && num_tokens_ % cache_->plan().block_tokens == 0) return false;
  const UnitPool& pool = cache_->pools_[g];
  return pool.num_leases(group.units.back()) > 1 || pool.cached(group.units.back());
}

// Grows each group by tokens [num_tokens_, num_tokens_ + n). A windowed group with blocks of 4 tokens:
//
//   token   0       4       8       12      16      20
//           |expired|       |       | tail  |  new  |
//                   ^ first block that first_query sees
//                                     ^ num_tokens_ ^ num_tokens_ + n
//
// Three things happen, in this order:
//   1. Blocks that no query from first_query on sees return to the pool. CanAllocate counts their bytes as free before
//      they return, so a growth that fails keeps them.
//   2. The tail is copied if the step writes into it while a fork, a snapshot or the index reads it.
//   3. New units are appended. CanAllocate checks all units of all groups at once, so growth is all or nothing.
//
// If the units do not fit, the lease gives up what only speeds up later work: its state snapshots, and the index's hold
// on its tails. A tail that only this lease then holds needs no copy. A checkpoint that only this lease holds makes
// room too: its states wait in host memory until their unit is allocated.
absl::Status SequenceLease::GrowFor(int64_t n, int64_t first_query, bool keep_snapshots) {
  // Most decoded tokens fit the tail block: no unit comes or goes, and no group needs a look.
  if (num_tokens_ + n <= room_until_ && first_query < expiry_stable_until_) {
    num_tokens_ += n;
    return absl::OkStatus();
  }
  const int num_groups = static_cast<int>(groups_.size());
  const auto wanted = [&] {
    Cache::UnitCounts units(num_groups);
    for (int g = 0; g < num_groups; ++g) {
      const Group& group = groups_[g];
      const int64_t end = group.expired_blocks + static_cast<int64_t>(group.units.size());
      units[g] = std::max<int64_t>(0, EndUnit(g, num_tokens_ + n) - std::max(end, ExpiredBlocks(g, first_query)));
      units[g] += MustCopy(g) ? 1 : 0;
    }
    return units;
  };
  // Expired blocks make room for the new ones, unless another lease shares them.
  const int64_t leaving = ExpiringBytes(first_query);
  bool fits = cache_->CanAllocate(wanted(), leaving);
  std::unique_ptr<std::byte[]> states;
  if (!fits && !keep_snapshots) {
    // Tries again without state snapshots and cached tails, and with the bytes of an own checkpoint.
    DropSnapshotsAfter(-1);
    UncacheTails();
    fits = cache_->CanAllocate(wanted(), leaving + OwnCheckpointBytes());
    if (fits && OwnCheckpointBytes() > 0) states = TakeCheckpoint();
  }
  if (!fits) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the cache has no room for ", n, " more tokens of a sequence of ", num_tokens_,
                     num_cross_tokens_ > 0 ? absl::StrCat(" with ", num_cross_tokens_, " of its encoder") : ""));
  }
  for (int g = 0; g < num_groups; ++g) FreeHead(g, ExpiredBlocks(g, first_query) - groups_[g].expired_blocks);
  for (int g = 0; g < num_groups; ++g) {
    Group& group = groups_[g];
    if (MustCopy(g)) CopyTail(g);
    const int64_t end = EndUnit(g, num_tokens_ + n);
    while (group.expired_blocks + static_cast<int64_t>(group.units.size()) < end) Append(g, cache_->AllocateUnit(g));
    group.tail_shared = false;
  }
  if (states != nullptr || HoldsCheckpoint()) ExpandCheckpoint(std::move(states));
  num_tokens_ += n;
  Settle(first_query);
  return absl::OkStatus();
}

// Sets the bounds of GrowFor's fast path: the first group to fill its last block, and the first window to expire one,
// end it.
void SequenceLease::Settle(int64_t first_query) {
  room_until_ = std::numeric_limits<int64_t>::max();
  expiry_stable_until_ = std::numeric_limits<int64_t>::max();
  const int64_t block = cache_->plan().block_tokens;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const CacheGroup& group = cache_->plan().groups[g];
    if (!group.grows()) continue;
    room_until_ = std::min(room_until_, EndUnit(g, num_tokens_) * block);
    expiry_stable_until_ = std::min(expiry_stable_until_, group.kv.ExpiryStableUntil(first_query, block));
  }
}

void SequenceLease::ShareTail(int g) {
  groups_[g].tail_shared = true;
  room_until_ = 0;
}

bool SequenceLease::HoldsCheckpoint() const {
  const int g = cache_->plan().checkpoint_group();
  return g >= 0 && !groups_[g].units.empty();
}

int SequenceLease::HeldStateGroup() const {
  if (num_tokens_ == 0) return -1;
  return HoldsCheckpoint() ? cache_->plan().checkpoint_group() : cache_->plan().state_group();
}

int64_t SequenceLease::OwnCheckpointBytes() const {
  if (!HoldsCheckpoint()) return 0;
  const int g = cache_->plan().checkpoint_group();
  const UnitPool& pool = cache_->pools_[g];
  return pool.num_leases(groups_[g].units[0]) == 1 ? pool.unit_bytes() : 0;
}

std::unique_ptr<std::byte[]> SequenceLease::TakeCheckpoint() {
  const CachePlan& plan = cache_->plan();
  auto states = std::make_unique<std::byte[]>(static_cast<size_t>(plan.groups[plan.state_group()].unit_bytes));
  cache_->ReadCheckpoint(groups_[plan.checkpoint_group()].offsets[0], states.get());
  FreeTail(plan.checkpoint_group(), 1);
  return states;
}

void SequenceLease::ExpandCheckpoint(std::unique_ptr<std::byte[]> states) {
  const CachePlan& plan = cache_->plan();
  const CacheGroup& to = plan.groups[plan.state_group()];
  const int64_t offset = groups_[plan.state_group()].offsets[0];
  if (states != nullptr) return cache_->storage().Write(offset, to.unit_bytes, states.get());
  const int g = plan.checkpoint_group();
  cache_->storage().Convert({.tensors = plan.checkpoints,
                             .expands = true,
                             .states = offset,
                             .states_bytes = to.unit_bytes,
                             .checkpoint = groups_[g].offsets[0],
                             .checkpoint_bytes = plan.groups[g].unit_bytes});
  FreeTail(g, 1);
}

int64_t SequenceLease::held_bytes() const {
  int64_t bytes = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    bytes += static_cast<int64_t>(groups_[g].units.size()) * cache_->pools_[g].unit_bytes();
  }
  return bytes;
}

int64_t SequenceLease::ExpiringBytes(int64_t position) const {
  int64_t bytes = 0;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const Group& group = groups_[g];
    const int64_t leaving = ExpiredBlocks(g, position) - group.expired_blocks;
    for (int64_t i = SinkBlocks(g); i < SinkBlocks(g) + leaving; ++i) {
      if (cache_->pools_[g].num_leases(group.units[i]) == 1) bytes += cache_->pools_[g].unit_bytes();
    }
  }
  return bytes;
}

void SequenceLease::CopyTail(int g) {
  Group& group = groups_[g];
  const UnitId copy = cache_->CopyUnit(g, group.units.back());
  FreeTail(g, 1);
  Append(g, copy);
}

void SequenceLease::UncacheTails() {
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const bool checkpoint = HoldsCheckpoint() && g == cache_->plan().checkpoint_group();
    if (!checkpoint && !MustCopy(g)) continue;
    const UnitId unit = groups_[g].units.back();
    if (cache_->pools_[g].num_leases(unit) == 1 && cache_->pools_[g].cached(unit)) cache_->index_.Evict(g, unit);
  }
}

const SequenceLease::StateSnapshot* SequenceLease::SnapshotAt(int64_t position) const {
  const StateSnapshot* latest = nullptr;
  for (const StateSnapshot& snapshot : snapshots_) {
    if (snapshot.position <= position) latest = &snapshot;
  }
  return latest;
}

bool SequenceLease::CanCropTo(int64_t position) const {
  if (cache_->plan().state_group() < 0) return true;
  const StateSnapshot* snapshot = SnapshotAt(position);
  return snapshot != nullptr && snapshot->position == position;
}

int64_t SequenceLease::ResumePoint(int64_t length) const {
  if (length > 0 && cache_->plan().state_group() >= 0) {
    const StateSnapshot* snapshot = SnapshotAt(length);
    length = snapshot == nullptr ? 0 : snapshot->position;
  }
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (groups_[g].expired_blocks > ExpiredBlocks(g, length)) return 0;
  }
  return length;
}

int64_t SequenceLease::Crop(int64_t length) {
  if (length == num_tokens_) return length;
  length = ResumePoint(length);
  const StateSnapshot* snapshot = length > 0 ? SnapshotAt(length) : nullptr;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    Group& group = groups_[g];
    const int64_t end = group.expired_blocks + static_cast<int64_t>(group.units.size());
    if (cache_->plan().groups[g].of_states()) {
      FreeTail(g, end);
      if (snapshot != nullptr && snapshot->group == g) {
        cache_->AddLease(g, snapshot->unit);
        Append(g, snapshot->unit);
      }
    } else {
      FreeTail(g, end - std::max(group.expired_blocks, EndUnit(g, length)));
    }
    if (length == 0) group.expired_blocks = 0;
    ShareTail(g);
  }
  DropSnapshotsAfter(length);
  num_tokens_ = length;
  if (published_blocks_ * cache_->plan().block_tokens > length) ResetCursor();
  return length;
}

void SequenceLease::SnapshotStates(int64_t keep) {
  if (keep == 0) return DropSnapshotsAfter(-1);
  const int g = HeldStateGroup();
  if (g < 0) return;
  if (!snapshots_.empty() && snapshots_.back().position == num_tokens_) return;
  cache_->AddLease(g, groups_[g].units[0]);
  ShareTail(g);
  snapshots_.push_back({.position = num_tokens_, .group = g, .unit = groups_[g].units[0]});
  while (static_cast<int64_t>(snapshots_.size()) > keep) {
    cache_->DropLease(snapshots_.front().group, snapshots_.front().unit);
    snapshots_.erase(snapshots_.begin());
  }
}

void SequenceLease::DropSnapshotsAfter(int64_t position) {
  while (!snapshots_.empty() && snapshots_.back().position > position) {
    cache_->DropLease(snapshots_.back().group, snapshots_.back().unit);
    snapshots_.pop_back();
  }
}

SequenceLease SequenceLease::Fork() {
  SequenceLease fork = cache_->NewLease(num_cross_tokens_);
  fork.num_tokens_ = num_tokens_;
  fork.groups_ = groups_;
  if (root_ != nullptr) {
    fork.root_ = cache_->index_.Pin(root_);
    fork.cursor_ = cache_->index_.Pin(cursor_);
    fork.published_blocks_ = published_blocks_;
  }
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    for (UnitId unit : groups_[g].units) cache_->AddLease(g, unit);
    fork.ShareTail(g);
    ShareTail(g);
  }
  return fork;
}

void SequenceLease::Share(absl::string_view salt) {
  root_ = cache_->index_.Root(salt);
  cursor_ = cache_->index_.Pin(root_);
  published_blocks_ = 0;
}

PrefixHit SequenceLease::Adopt(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t multiple) {
  Share(salt);
  const int64_t limit = static_cast<int64_t>(tokens.size()) - 1;
  const PrefixIndex::Match match = cache_->index_.Find(root_, tokens, limit, multiple);
  num_tokens_ = match.num_tokens;
  const int64_t block = cache_->plan().block_tokens;
  for (int g = 0; g < static_cast<int>(groups_.size()) && num_tokens_ > 0; ++g) {
    Group& group = groups_[g];
    ShareTail(g);
    if (g == cache_->plan().kept_group()) {
      cache_->AddLease(g, match.state);
      Append(g, match.state);
    }
    if (cache_->plan().groups[g].of_states()) continue;
    group.expired_blocks = ExpiredBlocks(g, num_tokens_);
    for (int64_t i = 0; i < EndUnit(g, num_tokens_) - group.expired_blocks; ++i) {
      const int64_t b = i < SinkBlocks(g) ? i : i + group.expired_blocks;
      const UnitId unit = PrefixIndex::UnitOf(match.path[b], g);
      cache_->AddLease(g, unit);
      Append(g, unit);
    }
  }
  published_blocks_ = num_tokens_ / block;
  if (published_blocks_ > 0) {
    PrefixIndex::Node* node = cache_->index_.Pin(match.path[published_blocks_ - 1]);
    cache_->index_.Unpin(std::exchange(cursor_, node));
  }
  return {.num_tokens = match.num_tokens, .matched_tokens = match.matched_tokens};
}

void SequenceLease::AddUnitsTo(PrefixIndex::Node* node, int64_t block) {
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const Group& group = groups_[g];
    if (!cache_->plan().groups[g].grows()) continue;
    const int64_t sinks = SinkBlocks(g);
    if (block >= sinks && block < sinks + group.expired_blocks) continue;
    cache_->index_.AddUnit(node, g, group.units[block < sinks ? block : block - group.expired_blocks]);
  }
}

bool SequenceLease::MarkStates(int64_t position) {
  const int g = cache_->plan().state_group();
  if (g < 0 || cache_->index_.max_states() <= static_cast<int64_t>(marks_.size()) ||
      cache_->available_bytes() < cache_->pools_[g].unit_bytes()) {
    return false;
  }
  const UnitId unit = cache_->AllocateUnit(g);
  marks_.push_back({.position = position, .unit = unit, .offset = cache_->pools_[g].offset(unit)});
  return true;
}

void SequenceLease::DropMarks() {
  for (const StateMark& mark : marks_) cache_->DropLease(cache_->plan().state_group(), mark.unit);
  marks_.clear();
}

void SequenceLease::PublishBlocks(absl::Span<const int32_t> tokens, int64_t count) {
  PrefixIndex& index = cache_->index_;
  const int64_t block = cache_->plan().block_tokens;
  for (; published_blocks_ < count; ++published_blocks_) {
    PrefixIndex::Node* node = index.Reach(cursor_, tokens.subspan(published_blocks_ * block, block));
    AddUnitsTo(node, published_blocks_);
    index.Unpin(std::exchange(cursor_, node));
  }
}

void SequenceLease::Publish(absl::Span<const int32_t> tokens, bool checkpoint) {
  if (!shares() || num_tokens_ == 0) return DropMarks();
  PrefixIndex& index = cache_->index_;
  const int64_t block = cache_->plan().block_tokens;
  for (const StateMark& mark : marks_) {
    PublishBlocks(tokens, mark.position / block);
    const int64_t tail = mark.position % block;
    PublishStates(tokens.subspan(mark.position - tail, tail), cache_->plan().state_group(), mark.unit);
  }
  DropMarks();
  PublishBlocks(tokens, num_tokens_ / block);
  if (!checkpoint) return;
  const int64_t tail = num_tokens_ % block;
  const absl::Span<const int32_t> rest = tokens.subspan(num_tokens_ - tail, tail);
  if (tail > 0) {
    PrefixIndex::Node* last = index.Reach(cursor_, rest);
    // A node with more tokens than these keeps its own units: this lease's units lack the rest.
    if (PrefixIndex::NumTokens(last) == tail) AddUnitsTo(last, published_blocks_);
    index.Unpin(last);
  }
  if (cache_->plan().state_group() < 0) return;
  const int held = HeldStateGroup();
  PublishStates(rest, held, groups_[held].units[0]);
  if (held == cache_->plan().kept_group()) ShareTail(held);
}

void SequenceLease::PublishStates(absl::Span<const int32_t> rest, int group, UnitId unit) {
  PrefixIndex& index = cache_->index_;
  const int kept = cache_->plan().kept_group();
  if (group == kept) return index.AddState(cursor_, rest, group, unit);
  if (index.max_states() == 0 || index.HasState(cursor_, rest) ||
      cache_->available_bytes() < cache_->pools_[kept].unit_bytes()) {
    return;
  }
  const UnitId checkpoint = cache_->QuantiseUnit(unit);
  index.AddState(cursor_, rest, kept, checkpoint);
  cache_->DropLease(kept, checkpoint);
}

void SequenceLease::StopSharing() {
  DropMarks();
  if (!shares()) return;
  cache_->index_.Unpin(std::exchange(cursor_, nullptr));
  cache_->index_.Unpin(std::exchange(root_, nullptr));
  published_blocks_ = 0;
}

void SequenceLease::Withdraw(absl::Span<const int32_t> tokens) {
  if (!shares()) return;
  cache_->index_.Forget(cursor_, cursor_ == root_ ? tokens : absl::Span<const int32_t>());
  StopSharing();
}

void SequenceLease::ResetCursor() {
  if (!shares()) return;
  cache_->index_.Unpin(std::exchange(cursor_, cache_->index_.Pin(root_)));
  published_blocks_ = 0;
}

void SequenceLease::Reset() {
  Crop(0);
  DropSnapshotsAfter(-1);
  StopSharing();
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) FreeTail(g, static_cast<int64_t>(groups_[g].units.size()));
}

void SequenceLease::Append(int g, UnitId unit) {
  groups_[g].units.push_back(unit);
  groups_[g].offsets.push_back(cache_->pools_[g].offset(unit));
}

void SequenceLease::FreeHead(int g, int64_t count) {
  Group& group = groups_[g];
  if (count == 0) return;
  const int64_t first = SinkBlocks(g);
  for (int64_t i = first; i < first + count; ++i) cache_->DropLease(g, group.units[i]);
  group.units.erase(group.units.begin() + first, group.units.begin() + first + count);
  group.offsets.erase(group.offsets.begin() + first, group.offsets.begin() + first + count);
  group.expired_blocks += count;
}

void SequenceLease::FreeTail(int g, int64_t count) {
  Group& group = groups_[g];
  for (int64_t i = 0; i < count; ++i) {
    cache_->DropLease(g, group.units.back());
    group.units.pop_back();
    group.offsets.pop_back();
  }
}

int64_t SequenceLease::TokensIn(int g) const {
  const CacheKind kind = cache_->plan().groups[g].kind;
  if (cache_->plan().groups[g].of_states()) return static_cast<int64_t>(groups_[g].units.size());
  if (kind == CacheKind::kCross) return groups_[g].units.empty() ? 0 : num_cross_tokens_;
  return num_tokens_ - groups_[g].expired_blocks * cache_->plan().block_tokens;
}

}  // namespace berth
