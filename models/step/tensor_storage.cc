#include "models/step/tensor_storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "cache/checkpoint.h"
#include "models/step/device_error.h"

namespace berth {
namespace {

constexpr int64_t kPinnedBytes = int64_t{1} << 20;
constexpr int64_t kBounceBytes = int64_t{4} << 20;

c10::Stream CurrentStream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

TensorStorage::TensorStorage(at::Tensor bytes, Converter converter)
    : bytes_(std::move(bytes)),
      converter_(std::move(converter)),
      bounce_(at::empty({std::min(bytes_.numel(), kBounceBytes)}, bytes_.options())) {}

TensorStorage::Beside::Beside(const at::Device& device)
    : steps(std::this_thread::get_id()),
      stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false)),
      fence(device.type()),
      pinned(at::empty({kPinnedBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true))) {}

template <typename Work>
bool TensorStorage::Attempt(const Work& work) const {
  if (failed_.load(std::memory_order_acquire)) return false;
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_.ok()) error_ = DeviceError("the arena's device failed", error);
    failed_.store(true, std::memory_order_release);
    return false;
  }
}

absl::Status TensorStorage::status() const {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void TensorStorage::Move(int64_t from, int64_t to, int64_t size_bytes) {
  Attempt([&] { MoveBytes(from, to, size_bytes); });
}

// Overlapping ranges go piece by piece, from the end that the target does not cover.
void TensorStorage::MoveBytes(int64_t from, int64_t to, int64_t size_bytes) {
  if (from >= to + size_bytes || to >= from + size_bytes) {
    bytes_.narrow(0, to, size_bytes).copy_(bytes_.narrow(0, from, size_bytes));
    return;
  }
  for (int64_t done = 0; done < size_bytes; done += bounce_.numel()) {
    const int64_t size = std::min(bounce_.numel(), size_bytes - done);
    const int64_t at = to < from ? done : size_bytes - done - size;
    at::Tensor piece = bounce_.narrow(0, 0, size);
    piece.copy_(bytes_.narrow(0, from + at, size));
    bytes_.narrow(0, to + at, size).copy_(piece);
  }
}

void TensorStorage::Convert(const StateConversion& c) {
  if (converter_ != nullptr) {
    Attempt([&] { converter_(bytes_, c); });
    return;
  }
  // Through host memory. What is not written of the states is padding.
  const auto states = std::make_unique<std::byte[]>(static_cast<size_t>(c.states_bytes));
  const auto checkpoint = std::make_unique<std::byte[]>(static_cast<size_t>(c.checkpoint_bytes));
  if (c.expands) {
    Read(c.checkpoint, c.checkpoint_bytes, checkpoint.get());
    if (failed_) return;
    ExpandStates(c.tensors, checkpoint.get(), states.get());
    Write(c.states, c.states_bytes, states.get());
  } else {
    Read(c.states, c.states_bytes, states.get());
    if (failed_) return;
    QuantiseStates(c.tensors, states.get(), checkpoint.get());
    Write(c.checkpoint, c.checkpoint_bytes, checkpoint.get());
  }
}

void TensorStorage::Fence() {
  if (bytes_.is_cpu()) return;  // its copies are done when they return
  Attempt([&] {
    if (beside_ == nullptr) beside_ = std::make_unique<Beside>(bytes_.device());
    beside_->fence.record(CurrentStream(bytes_.device()));
  });
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
  const bool done = Attempt([&] { ReadBytes(offset, size_bytes, out); });
  if (!done) std::memset(out, 0xFF, static_cast<size_t>(size_bytes));
}

void TensorStorage::ReadBytes(int64_t offset, int64_t size_bytes, std::byte* out) const {
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
  Attempt([&] { WriteBytes(offset, size_bytes, bytes); });
}

void TensorStorage::WriteBytes(int64_t offset, int64_t size_bytes, const std::byte* bytes) {
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

void TensorStorage::Poison(int64_t offset, int64_t size_bytes) {
  Attempt([&] { bytes_.narrow(0, offset, size_bytes).fill_(0xFF); });
}

}  // namespace berth
