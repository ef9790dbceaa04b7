// The arena's range in order of address: slabs, each of one pool, and the holes between them. A slab has the size that
// its pool asks for. It can be moved down and cut shorter, so that all free bytes can become one hole. Engine thread
// only.
//
// Invariants (CheckIntegrity verifies them): the extents cover the range without gap or overlap, and no two holes are
// neighbours.
#ifndef BERTH_CACHE_SLAB_ARENA_H_
#define BERTH_CACHE_SLAB_ARENA_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace berth {

class SlabArena {
 public:
  // Every size passed in must be a multiple of this; every offset is one.
  static constexpr int64_t kAlignment = 64;

  // The holder of a slab: a pool, and the pool's own number for the slab.
  struct Owner {
    int32_t pool = -1;
    int32_t slab = -1;
  };

  explicit SlabArena(int64_t arena_bytes);

  // Takes a slab of `size_bytes` from the smallest hole that holds it. Returns -1 if no hole does.
  int32_t Take(int64_t size_bytes, Owner owner);
  void Return(int32_t slab);
  // Cuts a slab's tail off. REQUIRES: 0 < size_bytes < its size.
  void Shrink(int32_t slab, int64_t size_bytes);

  // Slides slabs down until there is a hole of `size_bytes`. Chooses the neighbouring slabs whose holes add up to it
  // and that have the fewest bytes to move. Calls `move` for each, lowest first; the new range may overlap the old one.
  // REQUIRES: free_bytes() >= size_bytes.
  using Move = absl::FunctionRef<void(Owner owner, int64_t from, int64_t to, int64_t size_bytes)>;
  void MakeHole(int64_t size_bytes, Move move);

  int64_t offset(int32_t slab) const { return extents_[slab].offset; }
  int64_t size_bytes(int32_t slab) const { return extents_[slab].size_bytes; }
  int64_t free_bytes() const { return free_bytes_; }  // of all holes
  int64_t largest_hole() const;
  int64_t usable_bytes() const { return usable_bytes_; }  // the arena, rounded down to kAlignment

  absl::Status CheckIntegrity() const;

 private:
  struct Extent {
    int64_t offset = 0;
    int64_t size_bytes = 0;
    int32_t previous = -1;
    int32_t next = -1;
    int32_t hole = -1;  // index in holes_; -1: a slab
    Owner owner;
  };

  int32_t NewExtent();
  // Puts `extent` into the order right after `previous` (-1: first).
  void InsertAfter(int32_t previous, int32_t extent);
  void Unlink(int32_t extent);
  void AddHole(int32_t extent);
  void RemoveHole(int32_t extent);
  // Merges the hole with its neighbouring holes.
  void Merge(int32_t hole);

  int64_t usable_bytes_;
  int64_t free_bytes_;
  std::vector<Extent> extents_;
  std::vector<int32_t> unused_;  // numbers of extents that are not in use
  std::vector<int32_t> holes_;
  int32_t first_ = -1;
};

}  // namespace berth

#endif  // BERTH_CACHE_SLAB_ARENA_H_
