#include "models/kernels/step_image.h"

#include <ATen/ops/empty.h>

#include <cstddef>

namespace berth {

int64_t StepImage::AddBytes(const void* values, int64_t size_bytes) {
  const int64_t offset = static_cast<int64_t>(bytes_.size());
  bytes_.resize(offset + (size_bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (size_bytes > 0) std::memcpy(bytes_.data() + offset, values, size_bytes);
  return offset;
}

int64_t StepImage::AddBlocks(const std::vector<cpu::Blocks>& blocks) {
  const int64_t first = Add(blocks);
  for (size_t r = 0; r < blocks.size(); ++r) {
    const int64_t at = first + static_cast<int64_t>(r * sizeof(cpu::Blocks) + offsetof(cpu::Blocks, offsets));
    pointers_.push_back({.at = at, .target = AddBytes(blocks[r].offsets, blocks[r].num_offsets * sizeof(int64_t))});
  }
  return first;
}

at::Tensor StepImage::Copy(const at::Device& device) {
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  const int64_t size = static_cast<int64_t>(bytes_.size());
  at::Tensor copy = at::empty({size}, bytes.device(device));
  for (const Pointer& pointer : pointers_) {
    const char* target = static_cast<const char*>(copy.const_data_ptr()) + pointer.target;
    std::memcpy(bytes_.data() + pointer.at, &target, sizeof(target));
  }
  // ATen keeps pinned memory from being used again until the transfer is done.
  const at::Tensor host = at::empty({size}, bytes.pinned_memory(!device.is_cpu()));
  std::memcpy(host.mutable_data_ptr(), bytes_.data(), size);
  copy.copy_(host, /*non_blocking=*/true);
  return copy;
}

}  // namespace berth
