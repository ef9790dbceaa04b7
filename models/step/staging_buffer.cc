#include "models/step/staging_buffer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>

namespace berth {
namespace {

constexpr int64_t kLeastBytes = int64_t{64} << 10;

}  // namespace

int64_t StagingBuffer::AddBytes(const void* values, int64_t size_bytes) {
  const int64_t offset = static_cast<int64_t>(bytes_.size());
  bytes_.resize(offset + Padded(size_bytes));
  if (size_bytes > 0) std::memcpy(bytes_.data() + offset, values, size_bytes);
  return offset;
}

int64_t StagingBuffer::AddBlocks(const std::vector<ops::Blocks>& blocks) {
  const int64_t first = Add(blocks);
  for (size_t r = 0; r < blocks.size(); ++r) {
    tables_.push_back(
        {.pointer = first + static_cast<int64_t>(r * sizeof(ops::Blocks) + offsetof(ops::Blocks, offsets)),
         .offsets = blocks[r].offsets,
         .num_offsets = blocks[r].num_offsets});
  }
  return first;
}

void StagingBuffer::Copy(const at::Device& device, at::Tensor* copy) {
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  const int64_t without_tables = static_cast<int64_t>(bytes_.size());
  int64_t of_tables = 0;
  for (const Table& table : tables_) of_tables += Padded(table.num_offsets * static_cast<int64_t>(sizeof(int64_t)));
  const int64_t size = without_tables + of_tables;
  if (!copy->defined() || copy->numel() < size) {
    const int64_t room = 2 * without_tables + std::max(2 * of_tables, reserved_);
    *copy = at::empty({std::max(room, kLeastBytes)}, bytes.device(device));
  }
  const char* const base = static_cast<const char*>(copy->const_data_ptr());
  for (const Table& table : tables_) {
    const char* const target =
        base + AddBytes(table.offsets, table.num_offsets * static_cast<int64_t>(sizeof(int64_t)));
    std::memcpy(bytes_.data() + table.pointer, &target, sizeof(target));
  }
  // ATen keeps pinned memory from being used again until the transfer is done.
  const at::Tensor host = at::empty({size}, bytes.pinned_memory(!device.is_cpu()));
  std::memcpy(host.mutable_data_ptr(), bytes_.data(), size);
  copy->narrow(0, 0, size).copy_(host, /*non_blocking=*/true);
}

}  // namespace berth
