#include "cache/snapshot.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "cache/cache.h"

namespace berth {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A snapshot is one range of bytes, group after group and unit after unit. A step's copy budget may end anywhere:
//
//   group 0                    group 1
//   | unit 0 | unit 1 | unit 2 | unit 0 | unit 1 |
//                  ^ from           ^ to
//
// Calls `copy` for each piece of a unit of `group` within bytes [from, to). The group's bytes start at `start`.
void ForPieces(const CacheSnapshot::Group& group, int64_t start, int64_t from, int64_t to,
               absl::FunctionRef<void(int64_t unit, int64_t at, int64_t size_bytes)> copy) {
  from = std::max<int64_t>(0, from - start);
  to = std::min(to - start, group.num_units * group.unit_bytes);
  while (from < to) {
    const int64_t unit = from / group.unit_bytes;
    const int64_t end = std::min(to, (unit + 1) * group.unit_bytes);
    copy(unit, from - unit * group.unit_bytes, end - from);
    from = end;
  }
}

// Lays out the plan's first `num_groups` groups. `states`: the group that holds the states.
CacheSnapshot Layout(const CachePlan& plan, size_t num_groups, int states, int64_t num_tokens,
                     int64_t num_cross_tokens) {
  CacheSnapshot snapshot;
  snapshot.num_tokens = num_tokens;
  snapshot.num_cross_tokens = num_cross_tokens;
  for (size_t g = 0; g < num_groups; ++g) {
    const CacheGroup& group = plan.groups[g];
    CacheSnapshot::Group& out = snapshot.groups.emplace_back();
    out.unit_bytes = group.unit_bytes;
    if (num_tokens == 0) continue;
    if (group.of_states()) {
      out.num_units = static_cast<int>(g) == states ? 1 : 0;
    } else if (group.kind == CacheKind::kCross) {
      out.num_units = CeilDiv(num_cross_tokens, plan.block_tokens);
    } else {
      out.expired_blocks = group.kv.ExpiredBlocks(num_tokens, plan.block_tokens);
      out.num_units = CeilDiv(num_tokens, plan.block_tokens) - out.expired_blocks;
    }
    snapshot.size_bytes += out.num_units * out.unit_bytes;
  }
  return snapshot;
}

absl::Status CheckTokens(const CacheSnapshot& snapshot) {
  constexpr int64_t kMaxTokens = int64_t{1} << 32;  // far from overflow
  if (snapshot.num_tokens < 0 || snapshot.num_tokens > kMaxTokens || snapshot.num_cross_tokens < 0 ||
      snapshot.num_cross_tokens > kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat("the snapshot has ", snapshot.num_tokens, " tokens and ",
                                                   snapshot.num_cross_tokens, " of an encoder, outside [0, 2^32]"));
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const CacheSnapshot& snapshot, const CacheSnapshot& wanted) {
  if (snapshot.num_cross_tokens != wanted.num_cross_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("the snapshot has ", snapshot.num_cross_tokens,
                                                   " tokens of an encoder, not ", wanted.num_cross_tokens));
  }
  if (snapshot.groups.size() != wanted.groups.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the snapshot has ", snapshot.groups.size(), " groups, the plan ", wanted.groups.size()));
  }
  for (size_t g = 0; g < wanted.groups.size(); ++g) {
    const CacheSnapshot::Group& have = snapshot.groups[g];
    const CacheSnapshot::Group& want = wanted.groups[g];
    if (have == want) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("group ", g, " of the snapshot has ", have.num_units, " units of ", have.unit_bytes,
                     " bytes without ", have.expired_blocks, " blocks; its ", snapshot.num_tokens, " tokens need ",
                     want.num_units, " of ", want.unit_bytes, " without ", want.expired_blocks));
  }
  if (snapshot.size_bytes != wanted.size_bytes || (snapshot.size_bytes > 0 && snapshot.bytes == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the snapshot has ", snapshot.size_bytes, " bytes, its units ", wanted.size_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

CacheSnapshot SnapshotLayout(const CachePlan& plan, int64_t num_tokens, int64_t num_cross_tokens) {
  const size_t num_groups = plan.groups.size() - (plan.checkpoint_group() >= 0 ? 1 : 0);
  return Layout(plan, num_groups, plan.state_group(), num_tokens, num_cross_tokens);
}

CacheSnapshot PrefixLayout(const CachePlan& plan, int64_t num_tokens) {
  return Layout(plan, plan.groups.size(), plan.kept_group(), num_tokens, /*num_cross_tokens=*/0);
}

absl::Status CheckSnapshot(const CachePlan& plan, const CacheSnapshot& snapshot) {
  if (absl::Status status = CheckTokens(snapshot); !status.ok()) return status;
  return CheckGroups(snapshot, SnapshotLayout(plan, snapshot.num_tokens, snapshot.num_cross_tokens));
}

absl::Status CheckPrefixSnapshot(const CachePlan& plan, const CacheSnapshot& snapshot) {
  if (absl::Status status = CheckTokens(snapshot); !status.ok()) return status;
  return CheckGroups(snapshot, PrefixLayout(plan, snapshot.num_tokens));
}

bool SnapshotServes(const CachePlan& plan, int64_t num_tokens, int64_t first_tokens) {
  if (first_tokens == num_tokens) return true;
  if (first_tokens > num_tokens || first_tokens == 0) return false;
  return std::all_of(plan.groups.begin(), plan.groups.end(), [&](const CacheGroup& group) {
    return group.grows() && group.kv.ExpiredBlocks(num_tokens, plan.block_tokens) ==
                                group.kv.ExpiredBlocks(first_tokens, plan.block_tokens);
  });
}

CacheSnapshot SequenceLease::NewSnapshot() const {
  CacheSnapshot snapshot = SnapshotLayout(cache_->plan(), num_tokens_, num_cross_tokens_);
  snapshot.bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(snapshot.size_bytes));
  return snapshot;
}

CacheSnapshot SequenceLease::Save() const {
  CacheSnapshot snapshot = NewSnapshot();
  Save(0, snapshot.size_bytes, &snapshot);
  return cache_->storage().status().ok() ? std::move(snapshot) : CacheSnapshot();
}

void SequenceLease::Save(int64_t from, int64_t to, CacheSnapshot* snapshot) const {
  std::vector<SnapshotSpan> spans;
  LocateSaved(from, to, snapshot, &spans);
  for (const SnapshotSpan& span : spans) {
    if (span.offset >= 0) cache_->storage().Read(span.offset, span.size_bytes, span.bytes);
  }
}

void SequenceLease::LocateSaved(int64_t from, int64_t to, CacheSnapshot* snapshot,
                                std::vector<SnapshotSpan>* spans) const {
  int64_t start = 0;
  for (size_t g = 0; g < snapshot->groups.size(); ++g) {
    const CacheSnapshot::Group& group = snapshot->groups[g];
    std::byte* const out = snapshot->bytes.get() + start;
    const bool expands = HoldsCheckpoint() && static_cast<int>(g) == cache_->plan().state_group();
    const int64_t sinks = SinkBlocks(static_cast<int>(g));
    const int64_t skipped = group.expired_blocks - groups_[g].expired_blocks;
    ForPieces(group, start, from, to, [&](int64_t unit, int64_t at, int64_t size) {
      std::byte* const bytes = out + unit * group.unit_bytes + at;
      if (expands) return spans->push_back({-1, bytes, size});
      spans->push_back({groups_[g].offsets[unit < sinks ? unit : skipped + unit] + at, bytes, size});
    });
    if (expands && from <= start && start < to) {
      std::fill_n(out, group.unit_bytes, std::byte{0});  // also the padding between states
      cache_->ReadCheckpoint(groups_[cache_->plan().checkpoint_group()].offsets[0], out);
    }
    start += group.num_units * group.unit_bytes;
  }
}

void SequenceLease::Load(const CacheSnapshot& snapshot, int64_t from, int64_t to) {
  std::vector<SnapshotSpan> spans;
  Locate(snapshot, from, to, &spans);
  for (const SnapshotSpan& span : spans) cache_->storage().Write(span.offset, span.size_bytes, span.bytes);
}

void SequenceLease::Locate(const CacheSnapshot& snapshot, int64_t from, int64_t to,
                           std::vector<SnapshotSpan>* spans) const {
  const CacheSnapshot layout = HoldsCheckpoint() ? PrefixLayout(cache_->plan(), num_tokens_)
                                                 : SnapshotLayout(cache_->plan(), num_tokens_, num_cross_tokens_);
  std::byte* in = snapshot.bytes.get();
  int64_t start = 0;  // of the group, among the lease's bytes
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const CacheSnapshot::Group& group = layout.groups[g];
    ForPieces(group, start, from, to, [&](int64_t unit, int64_t at, int64_t size) {
      spans->push_back({groups_[g].offsets[unit] + at, in + unit * group.unit_bytes + at, size});
    });
    start += group.num_units * group.unit_bytes;
    in += snapshot.groups[g].num_units * snapshot.groups[g].unit_bytes;
  }
}

bool Cache::ReadPrefix(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                       CacheSnapshot* snapshot) {
  std::vector<SnapshotSpan> spans;
  if (!LocatePrefix(salt, tokens, from, to, snapshot, &spans)) return false;
  for (const SnapshotSpan& span : spans) {
    if (span.offset >= 0) storage_->Read(span.offset, span.size_bytes, span.bytes);
  }
  return storage_->status().ok();
}

bool Cache::LocatePrefix(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                         CacheSnapshot* snapshot, std::vector<SnapshotSpan>* spans) {
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  PrefixIndex::Node* const root = index_.Root(salt);
  const PrefixIndex::Match match = index_.Find(root, tokens, num_tokens, /*multiple=*/1);
  const bool whole = match.num_tokens == num_tokens;
  std::byte* out = snapshot->bytes.get();
  int64_t start = 0;
  for (size_t g = 0; g < snapshot->groups.size() && whole; ++g) {
    const CacheSnapshot::Group& group = snapshot->groups[g];
    ForPieces(group, start, from, to, [&](int64_t unit, int64_t at, int64_t size) {
      const int64_t sinks = plan_.groups[g].kv.SinkBlocks(plan_.block_tokens);
      const int64_t block = unit < sinks ? unit : unit + group.expired_blocks;
      const UnitId id =
          plan_.groups[g].grows() ? PrefixIndex::UnitOf(match.path[block], static_cast<int>(g)) : match.state;
      SnapshotSpan span = {pools_[g].offset(id) + at, out + start + unit * group.unit_bytes + at, size};
      const bool in_part = plan_.groups[g].grows() && (block + 1) * plan_.block_tokens > num_tokens;
      if (in_part && pools_[g].num_leases(id) > 0) {
        storage_->Read(span.offset, span.size_bytes, span.bytes);
        span.offset = -1;
      }
      spans->push_back(span);
    });
    start += group.num_units * group.unit_bytes;
  }
  index_.Unpin(root);
  return whole;
}

int64_t SequenceLease::snapshot_bytes() const {
  return SnapshotLayout(cache_->plan(), num_tokens_, num_cross_tokens_).size_bytes;
}

// A snapshot knows no units: it restores into whatever units are free now. Reserve takes all of them before Load copies
// a byte, because making room for one unit may move another. A caller with a copy budget calls the two itself, and
// calls Load in pieces over several steps. Units may move in between, because Load looks offsets up each time.
absl::StatusOr<SequenceLease> Cache::Restore(const CacheSnapshot& snapshot) {
  if (absl::Status status = CheckSnapshot(plan_, snapshot); !status.ok()) return status;
  absl::StatusOr<SequenceLease> lease = Reserve(snapshot);
  if (lease.ok()) lease->Load(snapshot, 0, snapshot.size_bytes);
  return lease;
}

absl::StatusOr<SequenceLease> Cache::Reserve(const CacheSnapshot& snapshot) {
  UnitCounts units(pools_.size());
  for (size_t g = 0; g < snapshot.groups.size(); ++g) units[g] = snapshot.groups[g].num_units;
  if (!CanAllocate(units)) {
    return absl::ResourceExhaustedError(absl::StrCat("the cache has no room for the ", snapshot.size_bytes,
                                                     " bytes of a sequence of ", snapshot.num_tokens, " tokens"));
  }
  SequenceLease lease = NewLease(snapshot.num_cross_tokens);
  lease.num_tokens_ = snapshot.num_tokens;
  // Allocates all units before any byte is copied: making room for one may move another.
  for (size_t g = 0; g < snapshot.groups.size(); ++g) {
    lease.groups_[g].expired_blocks = snapshot.groups[g].expired_blocks;
    for (int64_t i = 0; i < snapshot.groups[g].num_units; ++i) {
      lease.Append(static_cast<int>(g), AllocateUnit(static_cast<int>(g)));
    }
  }
  return lease;
}

}  // namespace berth
