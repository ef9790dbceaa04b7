#include "cache/cache.h"

#include <algorithm>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

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

}  // namespace

absl::StatusOr<std::unique_ptr<Cache>> Cache::Create(CachePlan plan, ArenaStorage* storage, Options options) {
  const int64_t least = plan.slab_bytes * static_cast<int64_t>(plan.groups.size());
  if (storage->size_bytes() < least) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the arena has ", storage->size_bytes(), " bytes; this model needs at least ", least, ": one slab of ",
        plan.slab_bytes, " bytes for each of its ", plan.groups.size(), " cache groups"));
  }
  return absl::WrapUnique(new Cache(std::move(plan), storage, options));
}

Cache::Cache(CachePlan plan, ArenaStorage* storage, Options options)
    : plan_(std::move(plan)), storage_(storage), options_(options), slabs_(storage->size_bytes(), plan_.slab_bytes) {
  pools_.reserve(plan_.groups.size());
  for (const CacheGroup& group : plan_.groups) pools_.emplace_back(&slabs_, group.unit_bytes);
}

Cache::~Cache() {
  if (!leases_.empty()) ABSL_RAW_LOG(FATAL, "%zu leases outlive their cache", leases_.size());
}

SequenceLease Cache::NewLease(int64_t num_cross_tokens) {
  return SequenceLease(this, next_generation_++, num_cross_tokens);
}

bool Cache::CanAllocate(const UnitCounts& units) const {
  int64_t slabs = 0;
  for (size_t g = 0; g < pools_.size(); ++g) slabs += pools_[g].SlabsNeeded(units[g]);
  return slabs <= slabs_.num_free();
}

void Cache::FreeUnit(int group, int64_t offset, uint64_t generation) {
  if (options_.poison_returned_units) storage_->Poison(offset, plan_.groups[group].unit_bytes);
  pools_[group].Free(offset, generation);
}

Cache::UnitCounts Cache::UnitsForSequence(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens) const {
  UnitCounts units;
  for (const CacheGroup& group : plan_.groups) {
    if (group.kind == CacheKind::kRecurrent) {
      units.push_back(num_tokens > 0 ? 1 : 0);
      continue;
    }
    if (group.kind == CacheKind::kCross) {
      units.push_back(num_tokens > 0 ? CeilDiv(num_cross_tokens, plan_.block_tokens) : 0);
      continue;
    }
    int64_t blocks = CeilDiv(num_tokens, plan_.block_tokens);
    if (const int64_t reach = group.kv.Reach(); reach > 0) {
      // What the step's first query sees, the step itself, and one block because neither starts on a boundary.
      blocks = std::min(blocks, CeilDiv(reach - 1 + step_tokens, plan_.block_tokens) + 1);
    }
    units.push_back(blocks);
  }
  return units;
}

bool Cache::CanFit(int64_t num_tokens, int64_t step_tokens, int64_t num_cross_tokens) const {
  return CanAllocate(UnitsForSequence(num_tokens, step_tokens, num_cross_tokens));
}

int64_t Cache::MaxSequenceTokens(int64_t step_tokens, int64_t limit, int64_t cross_limit) const {
  return LargestThat(limit, [&](int64_t n) {
    const UnitCounts units = UnitsForSequence(n, step_tokens, std::min(n, cross_limit));
    int64_t slabs = 0;
    for (size_t g = 0; g < pools_.size(); ++g) slabs += CeilDiv(units[g], pools_[g].units_per_slab());
    return slabs <= slabs_.num_slabs();
  });
}

void Cache::GetOccupancy(int64_t step_tokens, int64_t limit, Occupancy* out, int64_t cross_limit) const {
  out->arena_bytes = storage_->size_bytes();
  out->unassigned_free_bytes = slabs_.num_free() * slabs_.slab_bytes();
  out->unassigned_overhead_bytes = out->arena_bytes - slabs_.num_slabs() * slabs_.slab_bytes();
  out->num_leases = static_cast<int64_t>(leases_.size());
  out->largest_admissible_tokens =
      LargestThat(limit, [&](int64_t n) { return CanFit(n, step_tokens, std::min(n, cross_limit)); });
  out->pools.resize(pools_.size());
  for (size_t g = 0; g < pools_.size(); ++g) {
    PoolOccupancy& pool = out->pools[g];
    pool.kind = plan_.groups[g].kind;
    pool.unit_bytes = pools_[g].unit_bytes();
    pool.live_units = pools_[g].live_units();
    pool.free_units = pools_[g].free_units();
    pool.overhead_bytes = pools_[g].overhead_bytes();
    pool.live_tokens = 0;
    for (const SequenceLease* lease : leases_) pool.live_tokens += lease->TokensIn(static_cast<int>(g));
  }
}

absl::Status Cache::CheckLease(const SequenceLease& lease) const {
  for (size_t g = 0; g < pools_.size(); ++g) {
    for (int64_t offset : lease.groups_[g].units) {
      if (pools_[g].HolderOf(offset) == lease.generation()) continue;
      return absl::InternalError(absl::StrCat("lease ", lease.generation(), " lists the unit at byte ", offset,
                                              " of group ", g, ", held by ", pools_[g].HolderOf(offset)));
    }
    const int64_t end = lease.groups_[g].first_block + static_cast<int64_t>(lease.groups_[g].units.size());
    const int64_t wanted = lease.EndUnit(static_cast<int>(g), lease.num_tokens());
    const bool not_grown = plan_.groups[g].kind == CacheKind::kCross && lease.num_tokens() == 0 && end == 0;
    if (end != wanted && !not_grown) {
      return absl::InternalError(absl::StrCat("lease ", lease.generation(), " of ", lease.num_tokens(), " tokens and ",
                                              lease.num_cross_tokens(), " of its encoder ends at unit ", end,
                                              " of group ", g, ", not at ", wanted));
    }
  }
  return absl::OkStatus();
}

absl::Status Cache::CheckIntegrity() const {
  std::vector<int> owners(slabs_.num_slabs(), 0);
  for (int32_t slab : slabs_.free_slabs()) ++owners[slab];
  std::vector<int64_t> leased(pools_.size(), 0);
  for (const UnitPool& pool : pools_) {
    if (absl::Status status = pool.CheckIntegrity(); !status.ok()) return status;
    for (int32_t slab : pool.held_slabs()) ++owners[slab];
  }
  for (int32_t slab = 0; slab < slabs_.num_slabs(); ++slab) {
    if (owners[slab] != 1) return absl::InternalError(absl::StrCat("slab ", slab, " has ", owners[slab], " owners"));
  }
  for (const SequenceLease* lease : leases_) {
    if (absl::Status status = CheckLease(*lease); !status.ok()) return status;
    for (size_t g = 0; g < pools_.size(); ++g) leased[g] += static_cast<int64_t>(lease->groups_[g].units.size());
  }
  for (size_t g = 0; g < pools_.size(); ++g) {
    if (leased[g] != pools_[g].live_units()) {
      return absl::InternalError(
          absl::StrCat("group ", g, ": leases list ", leased[g], " units, the pool holds ", pools_[g].live_units()));
    }
  }
  Occupancy occupancy;
  GetOccupancy(/*step_tokens=*/1, /*limit=*/1, &occupancy);
  if (occupancy.TotalBytes() != occupancy.arena_bytes) {
    return absl::InternalError(
        absl::StrCat("bytes add up to ", occupancy.TotalBytes(), " of an arena of ", occupancy.arena_bytes));
  }
  return absl::OkStatus();
}

}  // namespace berth
