#include "models/step/tensor_storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace berth {
namespace {

constexpr int64_t kPinnedBytes = int64_t{1} << 20;

c10::Stream CurrentStream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

TensorStorage::TensorStorage(at::Tensor bytes) : bytes_(std::move(bytes)) {}

TensorStorage::Beside::Beside(const at::Device& device)
    : steps(std::this_thread::get_id()),
      stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false)),
      fence(device.type()),
      pinned(at::empty({kPinnedBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true))) {}

void TensorStorage::Move(int64_t from, int64_t to, int64_t size_bytes) {
  const at::Tensor source = bytes_.narrow(0, from, size_bytes);
  const bool overlap = from < to + size_bytes && to < from + size_bytes;
  bytes_.narrow(0, to, size_bytes).copy_(overlap ? source.clone() : source);
}

// Through host memory: simple, and no step waits for it but the one that follows a checkpoint.
void TensorStorage::Convert(int64_t from, int64_t from_bytes, int64_t to, int64_t to_bytes, Conversion convert) {
  const auto in = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(from_bytes));
  const auto out = std::make_unique<std::byte[]>(static_cast<size_t>(to_bytes));
  Read(from, from_bytes, in.get());
  convert(in.get(), out.get());
  Write(to, to_bytes, out.get());
}

void TensorStorage::Fence() {
  if (bytes_.is_cpu()) return;  // its copies are done when they return
  if (beside_ == nullptr) beside_ = std::make_unique<Beside>(bytes_.device());
  beside_->fence.record(CurrentStream(bytes_.device()));
}

template <typename Copy>
void TensorStorage::CopyBeside(int64_t offset, int64_t size_bytes, const Copy& copy) const {
  const c10::StreamGuard on(beside_->stream);
  beside_->fence.block(beside_->stream);
  for (int64_t at = 0; at < size_bytes; at += kPinnedBytes) {
    const int64_t size = std::min(kPinnedBytes, size_bytes - at);
    copy(beside_->pinned.narrow(0, 0, size), bytes_.narrow(0, offset + at, size), at);
  }
}

void TensorStorage::Read(int64_t offset, int64_t size_bytes, std::byte* out) const {
  if (!IsBeside()) {
    at::from_blob(out, {size_bytes}, at::kByte).copy_(bytes_.narrow(0, offset, size_bytes));
    return;
  }
  CopyBeside(offset, size_bytes, [&](at::Tensor pinned, const at::Tensor& arena, int64_t at) {
    pinned.copy_(arena, /*non_blocking=*/true);
    beside_->stream.synchronize();
    std::memcpy(out + at, pinned.const_data_ptr(), static_cast<size_t>(pinned.numel()));
  });
}

void TensorStorage::Write(int64_t offset, int64_t size_bytes, const std::byte* bytes) {
  if (!IsBeside()) {
    bytes_.narrow(0, offset, size_bytes).copy_(at::from_blob(const_cast<std::byte*>(bytes), {size_bytes}, at::kByte));
    return;
  }
  CopyBeside(offset, size_bytes, [&](at::Tensor pinned, at::Tensor arena, int64_t at) {
    std::memcpy(pinned.mutable_data_ptr(), bytes + at, static_cast<size_t>(pinned.numel()));
    arena.copy_(pinned, /*non_blocking=*/true);
    beside_->stream.synchronize();
  });
}

void TensorStorage::Poison(int64_t offset, int64_t size_bytes) { bytes_.narrow(0, offset, size_bytes).fill_(0xFF); }

}  // namespace berth
