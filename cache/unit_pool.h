// One group's units, packed into slabs that the pool takes from the arena on demand and gives back when empty.
// Allocation fills the fullest slab that has room, so that sparse slabs drain. Engine thread only.
#ifndef BERTH_CACHE_UNIT_POOL_H_
#define BERTH_CACHE_UNIT_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cache/slab_arena.h"

namespace berth {

class UnitPool {
 public:
  // `arena` must outlive the pool. REQUIRES: 0 < unit_bytes <= arena->slab_bytes().
  UnitPool(SlabArena* arena, int64_t unit_bytes);

  // Byte offset of a unit, now held under `generation`. REQUIRES: free_units() > 0 or the arena has a free slab.
  int64_t Allocate(uint64_t generation);
  // REQUIRES: `offset` came from Allocate(generation); crashes otherwise: a stale lease must not free another's unit.
  void Free(int64_t offset, uint64_t generation);

  // Slabs that `units` more units would take from the arena.
  int64_t SlabsNeeded(int64_t units) const;

  int64_t live_units() const { return live_units_; }
  int64_t free_units() const { return num_slabs() * units_per_slab_ - live_units_; }
  int64_t num_slabs() const { return static_cast<int64_t>(held_.size()); }
  int64_t unit_bytes() const { return unit_bytes_; }
  int64_t units_per_slab() const { return units_per_slab_; }
  int64_t overhead_bytes() const;

  // The generation that holds the unit at `offset`; 0 if it is free or not the pool's.
  uint64_t HolderOf(int64_t offset) const;
  const std::vector<int32_t>& held_slabs() const { return held_; }
  absl::Status CheckIntegrity() const;

 private:
  // Bookkeeping of one slab; its vectors keep their size when the slab goes back, so reuse allocates nothing.
  struct Slab {
    bool held = false;
    std::vector<uint64_t> holders;  // generation by unit, 0: free
    std::vector<int32_t> free;      // unit indices, last is next
  };

  int32_t FullestSlabWithRoom() const;  // -1: none
  void TakeSlab();
  void ReturnSlab(int32_t index);

  SlabArena* arena_;
  int64_t unit_bytes_;
  int64_t units_per_slab_;
  int64_t live_units_ = 0;
  int32_t current_ = -1;       // where the last unit came from; -1: none
  std::vector<Slab> slabs_;    // by the arena's slab index
  std::vector<int32_t> held_;  // indices of the slabs this pool holds
};

}  // namespace berth

#endif  // BERTH_CACHE_UNIT_POOL_H_
