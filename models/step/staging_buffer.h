// Gathers on the host what a step's kernels read, and copies it to the device in one transfer. Thread-compatible.
#ifndef BERTH_MODELS_STEP_STAGING_BUFFER_H_
#define BERTH_MODELS_STEP_STAGING_BUFFER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "models/step/row.h"

namespace berth {

class StagingBuffer {
 public:
  static constexpr int64_t kAlignment = 16;

  // Empties the buffer and keeps its memory.
  void Clear() {
    bytes_.clear();
    tables_.clear();
  }
  // Add and AddBlocks return the offset at which the values will lie in the copy.
  template <typename T>
  int64_t Add(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    return AddBytes(values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }
  // Where bytes are added one after the other, each begins at the next multiple of kAlignment.
  int64_t AddBytes(const void* values, int64_t size_bytes);
  // Adds the tables that they point to as well, so that the copied blocks point into the copy. The tables lie behind
  // everything else, so the other offsets do not depend on the tables' lengths. REQUIRES: the tables stay until Copy().
  int64_t AddBlocks(const std::vector<ops::Blocks>& blocks);

  // Has the first Copy make room for `size_bytes` and `num_tables` tables of `num_offsets` each.
  void Reserve(int64_t size_bytes, int64_t num_tables, int64_t num_offsets) {
    reserved_ = size_bytes + num_tables * Padded(num_offsets * static_cast<int64_t>(sizeof(int64_t)));
  }

  // Copies all of it to the beginning of `copy`, a uint8 tensor on the device. If `copy` is undefined or too small, it
  // is allocated with room to grow, so its address rarely changes from step to step. The host does not wait for the
  // transfer; the buffer may be cleared at once.
  void Copy(const at::Device& device, at::Tensor* copy);

 private:
  struct Table {
    int64_t pointer;  // where the pointer to it lies
    const int64_t* offsets;
    int64_t num_offsets;
  };
  static int64_t Padded(int64_t size_bytes) { return (size_bytes + kAlignment - 1) / kAlignment * kAlignment; }

  std::vector<char> bytes_;
  std::vector<Table> tables_;
  int64_t reserved_ = 0;
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_STAGING_BUFFER_H_
