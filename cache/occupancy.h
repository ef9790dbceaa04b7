// The use of every byte of the arena at one moment. Plain data; the engine thread copies it out once a step.
#ifndef BERTH_CACHE_OCCUPANCY_H_
#define BERTH_CACHE_OCCUPANCY_H_

#include <cstdint>
#include <vector>

#include "cache/spec.h"

namespace berth {

// Units of one pool, by who holds them.
struct PoolOccupancy {
  CacheKind kind = CacheKind::kStatic;
  int64_t unit_bytes = 0;
  int64_t live_units = 0;       // held by one sequence
  int64_t shared_units = 0;     // held by several sequences
  int64_t cached_units = 0;     // held only by the prefix index: evicted when a sequence needs their bytes
  int64_t free_units = 0;       // free, in the pool's slabs
  int64_t live_tokens = 0;      // tokens of sequences (KV) or of encoders (cross), or sequences (states)
  int64_t cached_tokens = 0;    // tokens that the cached units have room for; states: their number
  int64_t evicted_units = 0;    // since the start
  int64_t compacted_bytes = 0;  // since the start: moved to gather free bytes

  int64_t bytes(int64_t units) const { return units * unit_bytes; }
  int64_t TotalBytes() const { return bytes(live_units + shared_units + cached_units + free_units); }
};

// Adds up: unassigned_free + unassigned_overhead + sum over pools of TotalBytes() == arena_bytes.
struct Occupancy {
  int64_t arena_bytes = 0;
  int64_t unassigned_free_bytes = 0;      // in no slab
  int64_t unassigned_overhead_bytes = 0;  // the arena's tail, below the alignment
  int64_t largest_hole_bytes = 0;         // the largest contiguous free range
  std::vector<PoolOccupancy> pools;       // by group
  int64_t num_leases = 0;
  int64_t largest_admissible_tokens = 0;  // the longest new sequence that would fit now

  int64_t TotalBytes() const;  // the sum above
  int64_t FreeBytes() const;   // in slabs and out of them
};

}  // namespace berth

#endif  // BERTH_CACHE_OCCUPANCY_H_
