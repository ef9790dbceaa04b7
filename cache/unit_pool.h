// One group's units, packed into slabs that the pool takes from the arena on demand and returns when they are empty. A
// unit keeps its id while its bytes may move, so holders keep ids and look up offsets. Engine thread only.
//
// A unit is free, or held: by leases (counted), by the prefix index (at most once), or by both. Allocate fills the
// fullest slab that has room, so that sparse slabs drain.
#ifndef BERTH_CACHE_UNIT_POOL_H_
#define BERTH_CACHE_UNIT_POOL_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cache/slab_arena.h"

namespace berth {

// A held unit of one pool. The generation reveals a stale id: it changes when the unit is freed.
struct UnitId {
  int32_t index = -1;
  uint32_t generation = 0;

  friend bool operator==(const UnitId&, const UnitId&) = default;
};

class UnitPool {
 public:
  // The most units in a slab: each has one bit of a word.
  static constexpr int64_t kMaxSlabUnits = 64;
  // A slab has as many units as fit this size, but at least one.
  static constexpr int64_t kSlabBytes = 1 << 20;

  // `arena` must outlive the pool; `number` is the pool's among its owners. REQUIRES: unit_bytes > 0, a multiple of
  // SlabArena::kAlignment.
  UnitPool(SlabArena* arena, int32_t number, int64_t unit_bytes);

  // Returns whether Allocate() finds a free unit, or a hole for at least one.
  bool has_room() const { return free_units_ > 0 || arena_->largest_hole() >= unit_bytes_; }
  // Returns a unit held by one lease. REQUIRES: has_room().
  UnitId Allocate();

  // References of leases and of the index. Dropping the last one frees the unit and returns true. A stale or free id
  // crashes, so that no holder can free another one's unit.
  void AddLease(UnitId unit);
  bool DropLease(UnitId unit);
  void SetCached(UnitId unit);
  bool DropCached(UnitId unit);

  bool live(UnitId unit) const;  // held by anyone, under this generation
  int32_t num_leases(UnitId unit) const { return units_[unit.index].num_leases; }
  bool cached(UnitId unit) const { return units_[unit.index].cached; }
  // Byte offset in the arena, until something moves.
  int64_t offset(UnitId unit) const { return OffsetOf(units_[unit.index]); }

  int64_t unit_bytes() const { return unit_bytes_; }
  int64_t live_units() const { return live_units_; }      // held by exactly one lease
  int64_t shared_units() const { return shared_units_; }  // by several
  int64_t cached_units() const { return cached_units_; }  // by the index alone
  int64_t free_units() const { return free_units_; }      // in the pool's slabs
  int64_t slab_units() const { return slab_units_; }      // of a slab of full size
  int64_t num_slabs() const { return num_slabs_; }

  // Empties the sparsest slab into the others, if they have room for its units and the units have at most `budget`
  // bytes. Calls `copy` for each unit (source and target do not overlap). Returns the bytes moved; -1: no slab fits.
  using Copy = absl::FunctionRef<void(int64_t from, int64_t to, int64_t size_bytes)>;
  int64_t EmptySparsestSlab(int64_t budget, Copy copy);
  // Packs the slab with the most free units and cuts them off it. Returns the bytes moved. REQUIRES: free_units() > 0.
  int64_t CutSparsestSlab(Copy copy);

  absl::Status CheckIntegrity() const;

 private:
  struct Unit {
    int32_t slab = -1;
    uint8_t place = 0;  // in the slab
    bool cached = false;
    int32_t num_leases = 0;
    uint32_t generation = 1;
  };
  struct Slab {
    int32_t extent = -1;  // the arena's number for it; -1: not in use
    uint64_t free = 0;    // bit by place
    int32_t capacity = 0;
    int32_t num_free = 0;
    // Neighbours in the list of slabs with the same number of free units.
    int32_t previous = -1;
    int32_t next = -1;
    std::array<int32_t, kMaxSlabUnits> units;  // index by place, where not free
  };

  int64_t OffsetOf(const Unit& unit) const {
    return arena_->offset(slabs_[unit.slab].extent) + unit.place * unit_bytes_;
  }
  void TakeSlab();
  void ReturnSlab(int32_t slab);
  // Put unit `index` at a free place of a slab, and remove it. They change place and counts, not bytes.
  void Put(int32_t index, int32_t slab);
  void Remove(int32_t index);
  void FreeIfUnheld(UnitId unit);
  void Count(const Unit& unit, int64_t sign);
  void CheckLive(UnitId unit) const;
  // The list of slabs by free units; full slabs are in none.
  void Link(int32_t slab);
  void Unlink(int32_t slab);
  int32_t SparsestSlab() const;
  void Relocate(int32_t index, int32_t slab, Copy copy);

  SlabArena* arena_;
  int32_t number_;
  int64_t unit_bytes_;
  int64_t slab_units_;
  int64_t live_units_ = 0;
  int64_t shared_units_ = 0;
  int64_t cached_units_ = 0;
  int64_t free_units_ = 0;
  int64_t num_slabs_ = 0;
  std::vector<Unit> units_;
  std::vector<int32_t> unused_units_;
  std::vector<Slab> slabs_;
  std::vector<int32_t> unused_slabs_;
  std::array<int32_t, kMaxSlabUnits + 1> by_free_;  // first slab of each list; -1: none
  uint64_t lists_ = 0;                              // bit n - 1: the list of n free units is not empty
};

}  // namespace berth

#endif  // BERTH_CACHE_UNIT_POOL_H_
