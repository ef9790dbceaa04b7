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

// The size of each of the two buffers. A transfer takes some microseconds to begin, so small ones are slow.
constexpr int64_t kPinnedBytes = int64_t{1} << 20;
constexpr int64_t kBounceBytes = int64_t{4} << 20;

c10::Stream CurrentStream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// How much of a copy passes through a pinned buffer at once: a quarter of it. So host and device both have something to
// do most of the time. It is at least 64 KiB, since each transfer takes some microseconds to begin.
int64_t PieceBytes(int64_t size_bytes) {
  constexpr int64_t kLeastPiece = int64_t{64} << 10;
  return std::clamp(size_bytes / 4, kLeastPiece, kPinnedBytes);
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
      done{c10::Event(device.type()), c10::Event(device.type())} {
  for (at::Tensor& buffer : pinned) {
    buffer = at::empty({kPinnedBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }
}

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

// On a GPU, enough that host and device work at once for most of a piece.
int64_t TensorStorage::piece_bytes() const { return bytes_.is_cpu() ? ArenaStorage::piece_bytes() : 4 * kPinnedBytes; }

void TensorStorage::Fence() {
  if (bytes_.is_cpu()) return;  // its copies are done when they return
  Attempt([&] {
    if (beside_ == nullptr) beside_ = std::make_unique<Beside>(bytes_.device());
    beside_->fence.record(CurrentStream(bytes_.device()));
  });
}

void TensorStorage::ReadBeside(int64_t offset, int64_t size_bytes, std::byte* host) const {
  const c10::StreamGuard on(beside_->stream);
  beside_->fence.block(beside_->stream);
  const int64_t piece = PieceBytes(size_bytes);
  const auto size_of = [&](int64_t at) { return std::min(piece, size_bytes - at); };
  const auto take = [&](int64_t at) {
    const int buffer = static_cast<int>(at / piece % 2);
    beside_->done[buffer].synchronize();
    std::memcpy(host + at, beside_->pinned[buffer].const_data_ptr(), static_cast<size_t>(size_of(at)));
  };
  for (int64_t at = 0; at < size_bytes; at += piece) {
    const int buffer = static_cast<int>(at / piece % 2);
    at::Tensor pinned = beside_->pinned[buffer].narrow(0, 0, size_of(at));
    pinned.copy_(bytes_.narrow(0, offset + at, size_of(at)), /*non_blocking=*/true);
    beside_->done[buffer].record(beside_->stream);
    if (at > 0) take(at - piece);
  }
  if (size_bytes > 0) take((size_bytes - 1) / piece * piece);
}

void TensorStorage::WriteBeside(int64_t offset, int64_t size_bytes, const std::byte* host) {
  const c10::StreamGuard on(beside_->stream);
  beside_->fence.block(beside_->stream);
  const int64_t piece = PieceBytes(size_bytes);
  for (int64_t at = 0; at < size_bytes; at += piece) {
    const int buffer = static_cast<int>(at / piece % 2);
    const int64_t size = std::min(piece, size_bytes - at);
    if (at >= 2 * piece) beside_->done[buffer].synchronize();
    const at::Tensor pinned = beside_->pinned[buffer].narrow(0, 0, size);
    std::memcpy(pinned.mutable_data_ptr(), host + at, static_cast<size_t>(size));
    bytes_.narrow(0, offset + at, size).copy_(pinned, /*non_blocking=*/true);
    beside_->done[buffer].record(beside_->stream);
  }
  beside_->stream.synchronize();
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
  ReadBeside(offset, size_bytes, out);
}

void TensorStorage::Write(int64_t offset, int64_t size_bytes, const std::byte* bytes) {
  Attempt([&] { WriteBytes(offset, size_bytes, bytes); });
}

void TensorStorage::WriteBytes(int64_t offset, int64_t size_bytes, const std::byte* bytes) {
  if (!IsBeside()) {
    bytes_.narrow(0, offset, size_bytes).copy_(at::from_blob(const_cast<std::byte*>(bytes), {size_bytes}, at::kByte));
    return;
  }
  WriteBeside(offset, size_bytes, bytes);
}

void TensorStorage::Poison(int64_t offset, int64_t size_bytes) {
  Attempt([&] { bytes_.narrow(0, offset, size_bytes).fill_(0xFF); });
}

}  // namespace berth
