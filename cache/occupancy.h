// What every byte of the arena is doing at one moment. Plain data, copied out by the engine thread once a step.
#ifndef BERTH_CACHE_OCCUPANCY_H_
#define BERTH_CACHE_OCCUPANCY_H_

#include <cstdint>
#include <vector>

#include "cache/spec.h"

namespace berth {

struct PoolOccupancy {
  CacheKind kind = CacheKind::kStatic;
  int64_t unit_bytes = 0;
  int64_t live_units = 0;      // held by leases
  int64_t free_units = 0;      // in the pool's slabs, held by nobody
  int64_t overhead_bytes = 0;  // tails of slabs too short for a unit
  int64_t live_tokens = 0;     // tokens in the live units (KV), the encoders' (cross), or sequences (states)

  int64_t live_bytes() const { return live_units * unit_bytes; }
  int64_t free_bytes() const { return free_units * unit_bytes; }
};

// Adds up: unassigned_free + unassigned_overhead + sum over pools of (live + free + overhead) == arena_bytes.
struct Occupancy {
  int64_t arena_bytes = 0;
  int64_t unassigned_free_bytes = 0;      // slabs that no pool holds
  int64_t unassigned_overhead_bytes = 0;  // the arena's tail, too short for a slab
  std::vector<PoolOccupancy> pools;       // by group
  int64_t num_leases = 0;
  int64_t largest_admissible_tokens = 0;  // the longest new sequence that would fit now

  int64_t TotalBytes() const;  // the sum above
};

}  // namespace berth

#endif  // BERTH_CACHE_OCCUPANCY_H_
