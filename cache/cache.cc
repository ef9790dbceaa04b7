#include "cache/cache.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "cache/checkpoint.h"

// What holds what, for a plan of three groups:
//
//   leases_: ids and offsets     index_: ids
//                 |                  |
//                 v                  v
//   pools_:   | static | sliding | recurrent |   units of one size in each
//                      | slabs
//                      v
//   slabs_:   | slab of static | slab of recurrent | hole | slab of static | slab of sliding | hole |
//   storage_: | their bytes                                                                         |
//
// AllocateUnit takes a unit of its group's pool. Before that, it evicts units of the index while the arena has too few
// free bytes. If the bytes are there but neither the pool nor a hole has room, MakeHole gathers them:
//   1. The pool with the most free bytes empties its sparsest slab or cuts it, until the holes add up to the unit.
//   2. slabs_ slides slabs together, until one hole is large enough.
//   3. RefreshTables gives the leases the new offsets. The index needs none: it looks them up by id.
namespace berth {
namespace {

// Compaction without need starts when less than this share of the arena is in no slab.
constexpr int64_t kRoomyShare = 8;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The largest n in [0, limit] with fits(n), for a predicate that is true up to some n.
template <typename Predicate>
int64_t LargestThat(int64_t limit, Predicate fits) {
  int64_t low = 0;
  int64_t high = limit;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The most units of states that the index may hold.
int64_t MaxStates(const CachePlan& plan, int64_t arena_bytes, double share) {
  if (plan.kept_group() < 0 || share <= 0) return 0;
  const double bytes = std::min(1.0, share) * static_cast<double>(arena_bytes);
  return std::max<int64_t>(1, static_cast<int64_t>(bytes) / plan.groups[plan.kept_group()].unit_bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cache>> Cache::Create(CachePlan plan, ArenaStorage* storage, Options options) {
  int64_t least = 0;
  for (const CacheGroup& group : plan.groups) {
    if (group.kind != CacheKind::kCheckpoint) least += group.unit_bytes;  // those are for what sequences leave
  }
  if (storage->size_bytes() < least) {
    return absl::FailedPreconditionError(
        absl::StrCat("the arena has ", storage->size_bytes(), " bytes; this model needs at least ", least,
                     ": one unit of each of its ", plan.groups.size(), " cache groups"));
  }
  return absl::WrapUnique(new Cache(std::move(plan), storage, options));
}

Cache::Cache(CachePlan plan, ArenaStorage* storage, Options options)
    : plan_(std::move(plan)),
      storage_(storage),
      options_(options),
      slabs_(storage->size_bytes()),
      index_(this, MaxStates(plan_, storage->size_bytes(), options.state_share)),
      compacted_bytes_(plan_.groups.size(), 0) {
  pools_.reserve(plan_.groups.size());
  for (const CacheGroup& group : plan_.groups) {
    pools_.emplace_back(&slabs_, static_cast<int32_t>(pools_.size()), group.unit_bytes);
  }
}

Cache::~Cache() {
  if (!leases_.empty()) ABSL_RAW_LOG(FATAL, "%zu leases outlive their cache", leases_.size());
}

SequenceLease Cache::NewLease(int64_t num_cross_tokens) {
  return SequenceLease(this, next_generation_++, num_cross_tokens);
}

int64_t Cache::free_bytes() const {
  int64_t bytes = slabs_.free_bytes();
  for (const UnitPool& pool : pools_) bytes += pool.free_units() * pool.unit_bytes();
  return bytes;
}

int64_t Cache::available_bytes() const {
  int64_t bytes = free_bytes();
  for (const UnitPool& pool : pools_) bytes += pool.cached_units() * pool.unit_bytes();
  return bytes;
}

int64_t Cache::BytesOf(const UnitCounts& units) const {
  int64_t bytes = 0;
  for (size_t g = 0; g < pools_.size(); ++g) bytes += units[g] * pools_[g].unit_bytes();
  return bytes;
}

bool Cache::CanAllocate(const UnitCounts& units, int64_t leaving_bytes) const {
  return BytesOf(units) <= available_bytes() + leaving_bytes;
}

UnitId Cache::AllocateUnit(int group) {
  UnitPool& pool = pools_[group];
  while (free_bytes() < pool.unit_bytes()) {
    if (!index_.EvictOldest()) ABSL_RAW_LOG(FATAL, "the arena has no room for a unit that was promised");
  }
  if (!pool.has_room()) MakeHole(pool.unit_bytes());
  return pool.Allocate();
}

UnitId Cache::CopyUnit(int group, UnitId unit) {
  const UnitId copy = AllocateUnit(group);
  storage_->Move(pools_[group].offset(unit), pools_[group].offset(copy), pools_[group].unit_bytes());
  return copy;
}

UnitId Cache::QuantiseUnit(UnitId states) {
  const int from = plan_.state_group();
  const int to = plan_.checkpoint_group();
  const UnitId checkpoint = AllocateUnit(to);
  storage_->Convert({.tensors = plan_.checkpoints,
                     .expands = false,
                     .states = pools_[from].offset(states),
                     .states_bytes = pools_[from].unit_bytes(),
                     .checkpoint = pools_[to].offset(checkpoint),
                     .checkpoint_bytes = pools_[to].unit_bytes()});
  return checkpoint;
}

void Cache::ReadCheckpoint(int64_t offset, std::byte* states) const {
  const int64_t bytes = plan_.groups[plan_.checkpoint_group()].unit_bytes;
  const auto checkpoint = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
  storage_->Read(offset, bytes, checkpoint.get());
  ExpandStates(plan_.checkpoints, checkpoint.get(), states);
}

void Cache::AddLease(int group, UnitId unit) {
  UnitPool& pool = pools_[group];
  if (pool.num_leases(unit) == 0) index_.OnBusy(group, unit);
  pool.AddLease(unit);
}

void Cache::DropLease(int group, UnitId unit) {
  UnitPool& pool = pools_[group];
  const bool last = pool.num_leases(unit) == 1;
  if (last && !pool.cached(unit) && options_.poison_returned_units) {
    storage_->Poison(pool.offset(unit), pool.unit_bytes());
  }
  pool.DropLease(unit);
  if (last && pool.live(unit)) index_.OnIdle(group, unit);
}

void Cache::SetCached(int group, UnitId unit) { pools_[group].SetCached(unit); }

void Cache::DropCached(int group, UnitId unit) {
  UnitPool& pool = pools_[group];
  if (pool.num_leases(unit) == 0 && options_.poison_returned_units) {
    storage_->Poison(pool.offset(unit), pool.unit_bytes());
  }
  pool.DropCached(unit);
}

void Cache::EvictAll() {
  while (index_.EvictOldest()) {
  }
}

int64_t Cache::ForgetPrefixes(std::optional<absl::string_view> salt) {
  const int64_t free_before = free_bytes();
  index_.ForgetAll(salt);
  return free_bytes() - free_before;
}

std::vector<int32_t> Cache::WatchPrefixes(absl::string_view salt, std::shared_ptr<PrefixLog> log) {
  return index_.Watch(salt, std::move(log));
}

void Cache::MoveBytes(int group, int64_t from, int64_t to, int64_t size_bytes) {
  storage_->Move(from, to, size_bytes);
  compacted_bytes_[group] += size_bytes;
  if (!options_.poison_returned_units) return;
  // What of the source the target does not cover.
  if (to + size_bytes <= from || from + size_bytes <= to) {
    storage_->Poison(from, size_bytes);
  } else if (to < from) {
    storage_->Poison(to + size_bytes, from - to);
  }
}

void Cache::MakeHole(int64_t size_bytes) {
  while (slabs_.free_bytes() < size_bytes) {
    int most = 0;
    for (size_t g = 1; g < pools_.size(); ++g) {
      const auto bytes = [&](int i) { return pools_[i].free_units() * pools_[i].unit_bytes(); };
      if (bytes(static_cast<int>(g)) > bytes(most)) most = static_cast<int>(g);
    }
    const auto copy = [&](int64_t from, int64_t to, int64_t size) { MoveBytes(most, from, to, size); };
    if (pools_[most].EmptySparsestSlab(std::numeric_limits<int64_t>::max(), copy) < 0)
      pools_[most].CutSparsestSlab(copy);
  }
  if (slabs_.largest_hole() < size_bytes) {
    slabs_.MakeHole(size_bytes, [&](SlabArena::Owner owner, int64_t from, int64_t to, int64_t size) {
      MoveBytes(owner.pool, from, to, size);
    });
  }
  RefreshTables();
}

void Cache::Compact(int64_t budget_bytes) {
  if (slabs_.free_bytes() > slabs_.usable_bytes() / kRoomyShare) return;
  bool any = false;
  for (size_t g = 0; g < pools_.size(); ++g) {
    const auto copy = [&](int64_t from, int64_t to, int64_t size) { MoveBytes(static_cast<int>(g), from, to, size); };
    for (int64_t moved = 0; moved >= 0;) {
      budget_bytes -= moved;
      any = any || moved > 0;
      moved = pools_[g].EmptySparsestSlab(budget_bytes, copy);
    }
  }
  if (any) RefreshTables();
}

void Cache::RefreshTables() {
  for (SequenceLease* lease : leases_) {
    for (size_t g = 0; g < pools_.size(); ++g) {
      SequenceLease::Group& group = lease->groups_[g];
      for (size_t i = 0; i < group.units.size(); ++i) group.offsets[i] = pools_[g].offset(group.units[i]);
    }
    for (StateMark& mark : lease->marks_) mark.offset = pools_[plan_.state_group()].offset(mark.unit);
  }
}

Cache::UnitCounts Cache::UnitsForSequence(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens) const {
  UnitCounts units;
  for (const CacheGroup& group : plan_.groups) {
    if (group.of_states()) {
      units.push_back(group.kind == CacheKind::kRecurrent && num_tokens > 0 ? 1 : 0);
      continue;
    }
    if (group.kind == CacheKind::kCross) {
      units.push_back(num_tokens > 0 ? CeilDiv(num_cross_tokens, plan_.block_tokens) : 0);
      continue;
    }
    int64_t blocks = CeilDiv(num_tokens, plan_.block_tokens);
    if (const int64_t reach = group.kv.Reach(); reach > 0) {
      // What the step's first query sees, the step itself, and one block because neither starts on a boundary.
      blocks = std::min(
          blocks, group.kv.SinkBlocks(plan_.block_tokens) + CeilDiv(reach - 1 + step_tokens, plan_.block_tokens) + 1);
    }
    units.push_back(blocks);
  }
  return units;
}

bool Cache::CanFit(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens) const {
  return CanAllocate(UnitsForSequence(num_tokens, step_tokens, num_cross_tokens));
}

// The sequence that is least far holds what a window keeps of the shared blocks. Any other one holds, beside those, at
// most the blocks that follow the shared ones, and no more than a window of its own.
void Cache::AddForks(int64_t num_tokens, int64_t step_tokens, Forks forks, UnitCounts* units) const {
  const UnitCounts own = UnitsForSequence(num_tokens, step_tokens, /*num_cross_tokens=*/0);
  for (size_t g = 0; g < pools_.size(); ++g) {
    const CacheGroup& group = plan_.groups[g];
    int64_t more = own[g];
    if (group.grows()) {
      const int64_t shared = forks.shared_tokens / plan_.block_tokens;
      const int64_t sinks = std::min({shared, group.kv.SinkBlocks(plan_.block_tokens), own[g]});
      more = std::min(own[g] - sinks, CeilDiv(num_tokens, plan_.block_tokens) - shared);
    }
    (*units)[g] += forks.count * more;
  }
}

bool Cache::ArenaHolds(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens, Forks forks) const {
  UnitCounts units = UnitsForSequence(num_tokens, step_tokens, num_cross_tokens);
  AddForks(num_tokens, step_tokens, forks, &units);
  return BytesOf(units) <= slabs_.usable_bytes();
}

int64_t Cache::KeptUnits(const SequenceLease& lease, int g, int64_t num_tokens) const {
  const SequenceLease::Group& group = lease.groups_[g];
  const auto shared = [&](int64_t i) { return pools_[g].num_leases(group.units[i]) > 1; };
  const int64_t held = static_cast<int64_t>(group.units.size());
  const int64_t first = std::min(held, lease.SinkBlocks(g));
  const int64_t expiring = std::max<int64_t>(0, lease.ExpiredBlocks(g, num_tokens - 1) - group.expired_blocks);
  const int64_t end = std::min(held, first + expiring);
  int64_t lost = 0;
  for (int64_t i = first; i < end; ++i) lost += shared(i) ? 1 : 0;
  // A tail that only the index shares need not be copied: Grow takes it back where there is no room for a copy.
  const bool expires = first < end && end == held;
  if (!expires && lease.MustCopy(g) && shared(held - 1)) ++lost;
  return held - lost;
}

int64_t Cache::MissingBytes(const SequenceLease& lease, int64_t num_tokens, int64_t step_tokens, Forks forks) const {
  if (num_tokens <= lease.num_tokens() && forks.count == 0) return 0;
  UnitCounts units = UnitsForSequence(num_tokens, step_tokens, lease.num_cross_tokens());
  for (int g = 0; g < static_cast<int>(pools_.size()); ++g) {
    if (!plan_.groups[g].grows()) continue;
    // The next growth returns what has expired, unless forks share it.
    const int64_t expired =
        forks.count > 0 ? lease.groups_[g].expired_blocks : lease.ExpiredBlocks(g, lease.num_tokens());
    units[g] = std::min(units[g], lease.EndUnit(g, num_tokens) - expired);
  }
  if (forks.count > 0) AddForks(num_tokens, step_tokens, forks, &units);
  for (int g = 0; g < static_cast<int>(pools_.size()); ++g) {
    units[g] = std::max<int64_t>(0, units[g] - KeptUnits(lease, g, num_tokens));
  }
  return BytesOf(units) - lease.OwnCheckpointBytes();
}

int64_t Cache::MaxSequenceTokens(int64_t step_tokens, int64_t limit, int64_t cross_limit) const {
  return LargestThat(limit, [&](int64_t n) {
    return BytesOf(UnitsForSequence(n, step_tokens, std::min(n, cross_limit))) <= slabs_.usable_bytes();
  });
}

void Cache::GetOccupancy(int64_t step_tokens, int64_t limit, Occupancy* out, int64_t cross_limit) const {
  out->arena_bytes = storage_->size_bytes();
  out->unassigned_free_bytes = slabs_.free_bytes();
  out->unassigned_overhead_bytes = out->arena_bytes - slabs_.usable_bytes();
  out->largest_hole_bytes = slabs_.largest_hole();
  out->num_leases = static_cast<int64_t>(leases_.size());
  out->largest_admissible_tokens =
      LargestThat(limit, [&](int64_t n) { return CanFit(n, step_tokens, std::min(n, cross_limit)); });
  out->pools.resize(pools_.size());
  for (size_t g = 0; g < pools_.size(); ++g) {
    PoolOccupancy& pool = out->pools[g];
    const CacheGroup& group = plan_.groups[g];
    pool.kind = group.kind;
    pool.unit_bytes = pools_[g].unit_bytes();
    pool.live_units = pools_[g].live_units();
    pool.shared_units = pools_[g].shared_units();
    pool.cached_units = pools_[g].cached_units();
    pool.free_units = pools_[g].free_units();
    pool.cached_tokens = pool.cached_units * (group.of_states() ? 1 : plan_.block_tokens);
    pool.evicted_units = index_.num_evicted(static_cast<int>(g));
    pool.compacted_bytes = compacted_bytes_[g];
    pool.live_tokens = 0;
    for (const SequenceLease* lease : leases_) pool.live_tokens += lease->TokensIn(static_cast<int>(g));
  }
}

absl::Status Cache::CheckLease(const SequenceLease& lease) const {
  for (size_t g = 0; g < pools_.size(); ++g) {
    const SequenceLease::Group& group = lease.groups_[g];
    for (size_t i = 0; i < group.units.size(); ++i) {
      if (pools_[g].live(group.units[i]) && pools_[g].offset(group.units[i]) == group.offsets[i]) continue;
      return absl::InternalError(absl::StrCat("lease ", lease.generation(), " lists unit ", group.units[i].index,
                                              " of group ", g, " at byte ", group.offsets[i],
                                              ", which is free or lies elsewhere"));
    }
    const int64_t end = group.expired_blocks + static_cast<int64_t>(group.units.size());
    int64_t wanted = lease.EndUnit(static_cast<int>(g), lease.num_tokens());
    if (lease.HoldsCheckpoint() && plan_.groups[g].of_states()) wanted = 1 - wanted;
    const bool settled = lease.room_until_ == 0 || !plan_.groups[g].grows() ||
                         (!group.tail_shared && lease.room_until_ <= end * plan_.block_tokens);
    if (!settled) {
      return absl::InternalError(absl::StrCat("lease ", lease.generation(), " would grow to ", lease.room_until_,
                                              " tokens without a look at group ", g, ", which ends at unit ", end));
    }
    const bool not_grown = plan_.groups[g].kind == CacheKind::kCross && lease.num_tokens() == 0 && end == 0;
    if (end != wanted && !not_grown) {
      return absl::InternalError(absl::StrCat("lease ", lease.generation(), " of ", lease.num_tokens(), " tokens and ",
                                              lease.num_cross_tokens(), " of its encoder ends at unit ", end,
                                              " of group ", g, ", not at ", wanted));
    }
  }
  int64_t last = 0;
  for (const StateMark& mark : lease.marks_) {
    const UnitPool& pool = pools_[plan_.state_group()];
    if (pool.live(mark.unit) && pool.offset(mark.unit) == mark.offset && mark.position > last &&
        mark.position < lease.num_tokens()) {
      last = mark.position;
      continue;
    }
    return absl::InternalError(absl::StrCat("lease ", lease.generation(), " of ", lease.num_tokens(),
                                            " tokens has a wrong mark at position ", mark.position));
  }
  return absl::OkStatus();
}

absl::Status Cache::CheckReferences() const {
  std::vector<std::map<int32_t, int32_t>> references(pools_.size());  // by group: unit -> leases that list it
  for (const SequenceLease* lease : leases_) {
    if (absl::Status status = CheckLease(*lease); !status.ok()) return status;
    for (size_t g = 0; g < pools_.size(); ++g) {
      for (UnitId unit : lease->groups_[g].units) ++references[g][unit.index];
    }
    for (const auto& snapshot : lease->snapshots_) ++references[snapshot.group][snapshot.unit.index];
    for (const StateMark& mark : lease->marks_) ++references[plan_.state_group()][mark.unit.index];
  }
  for (size_t g = 0; g < pools_.size(); ++g) {
    int64_t live = 0;
    int64_t shared = 0;
    for (const auto& [unit, count] : references[g]) ++(count == 1 ? live : shared);
    if (live != pools_[g].live_units() || shared != pools_[g].shared_units()) {
      return absl::InternalError(absl::StrCat("group ", g, ": leases list ", live, " units alone and ", shared,
                                              " together, the pool counts ", pools_[g].live_units(), " and ",
                                              pools_[g].shared_units()));
    }
  }
  return absl::OkStatus();
}

absl::Status Cache::CheckIntegrity() const {
  if (absl::Status status = slabs_.CheckIntegrity(); !status.ok()) return status;
  for (const UnitPool& pool : pools_) {
    if (absl::Status status = pool.CheckIntegrity(); !status.ok()) return status;
  }
  if (absl::Status status = CheckReferences(); !status.ok()) return status;
  if (absl::Status status = index_.CheckIntegrity(); !status.ok()) return status;
  Occupancy occupancy;
  GetOccupancy(/*step_tokens=*/1, /*limit=*/1, &occupancy);
  if (occupancy.TotalBytes() != occupancy.arena_bytes) {
    return absl::InternalError(
        absl::StrCat("bytes add up to ", occupancy.TotalBytes(), " of an arena of ", occupancy.arena_bytes));
  }
  return absl::OkStatus();
}

}  // namespace berth
