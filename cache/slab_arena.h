// The arena's slabs: equal pieces of one range, each free or held by a pool. Engine thread only.
#ifndef BERTH_CACHE_SLAB_ARENA_H_
#define BERTH_CACHE_SLAB_ARENA_H_

#include <cstdint>
#include <vector>

namespace berth {

class SlabArena {
 public:
  SlabArena(int64_t arena_bytes, int64_t slab_bytes);

  // Lowest free slab's index. REQUIRES: num_free() > 0.
  int32_t Take();
  void Return(int32_t slab);

  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_slabs() const { return num_slabs_; }
  int64_t slab_bytes() const { return slab_bytes_; }
  int64_t offset(int32_t slab) const { return slab * slab_bytes_; }
  int32_t slab_of(int64_t offset) const { return static_cast<int32_t>(offset / slab_bytes_); }
  const std::vector<int32_t>& free_slabs() const { return free_; }

 private:
  int64_t slab_bytes_;
  int32_t num_slabs_;
  std::vector<int32_t> free_;  // a min-heap: low slabs first, so that the used range stays dense
};

}  // namespace berth

#endif  // BERTH_CACHE_SLAB_ARENA_H_
