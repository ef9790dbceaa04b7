#include "cache/occupancy.h"

namespace berth {

int64_t Occupancy::TotalBytes() const {
  int64_t total = unassigned_free_bytes + unassigned_overhead_bytes;
  for (const PoolOccupancy& pool : pools) total += pool.live_bytes() + pool.free_bytes() + pool.overhead_bytes;
  return total;
}

}  // namespace berth
