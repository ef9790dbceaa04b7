#include "cache/slab_arena.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace berth {

SlabArena::SlabArena(int64_t arena_bytes, int64_t slab_bytes)
    : slab_bytes_(slab_bytes), num_slabs_(static_cast<int32_t>(arena_bytes / slab_bytes)) {
  free_.resize(num_slabs_);
  std::iota(free_.begin(), free_.end(), 0);  // ascending: a valid min-heap
}

int32_t SlabArena::Take() {
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t slab = free_.back();
  free_.pop_back();
  return slab;
}

void SlabArena::Return(int32_t slab) {
  free_.push_back(slab);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

}  // namespace berth
