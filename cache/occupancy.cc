#include "cache/occupancy.h"

namespace berth {

int64_t Occupancy::TotalBytes() const {
  int64_t total = unassigned_free_bytes + unassigned_overhead_bytes;
  for (const PoolOccupancy& pool : pools) total += pool.TotalBytes();
  return total;
}

int64_t Occupancy::FreeBytes() const {
  int64_t free = unassigned_free_bytes;
  for (const PoolOccupancy& pool : pools) free += pool.bytes(pool.free_units);
  return free;
}

}  // namespace berth
