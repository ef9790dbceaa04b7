// The arena on a device of ATen's: one tensor, allocated once.
#ifndef BERTH_MODELS_STEP_TENSOR_STORAGE_H_
#define BERTH_MODELS_STEP_TENSOR_STORAGE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "cache/storage.h"

namespace berth {

class TensorStorage : public ArenaStorage {
 public:
  // Enqueues a conversion on the arena's device, or throws c10::Error.
  using Converter = std::function<void(const at::Tensor& arena, const StateConversion& conversion)>;

  // bytes: [size], uint8. Without a converter, conversions go through host memory, and wait for the device.
  explicit TensorStorage(at::Tensor bytes, Converter converter = nullptr);

  std::byte* base() const override { return static_cast<std::byte*>(bytes_.data_ptr()); }
  int64_t size_bytes() const override { return bytes_.numel(); }
  void Move(int64_t from, int64_t to, int64_t size_bytes) override;
  void Convert(const StateConversion& conversion) override;
  // On the thread that fences, these run in the order of its stream, with the steps. On other threads, once a thread
  // has fenced, they run beside the steps: through pinned memory, on a stream of their own.
  void Read(int64_t offset, int64_t size_bytes, std::byte* out) const override;
  void Write(int64_t offset, int64_t size_bytes, const std::byte* bytes) override;
  int64_t piece_bytes() const override;
  void Fence() override;
  absl::Status status() const override;
  void Poison(int64_t offset, int64_t size_bytes) override;

 private:
  // What copies beside the steps need; made by the first Fence.
  struct Beside {
    explicit Beside(const at::Device& device);

    std::thread::id steps;  // the thread that fences
    c10::Stream stream;
    c10::Event fence;
    // Bytes on their way. The host fills or reads one buffer while the device copies the other. `done`: the device has
    // done its part of a buffer.
    at::Tensor pinned[2];
    c10::Event done[2];
  };

  void MoveBytes(int64_t from, int64_t to, int64_t size_bytes);
  void ReadBytes(int64_t offset, int64_t size_bytes, std::byte* out) const;
  void WriteBytes(int64_t offset, int64_t size_bytes, const std::byte* bytes);
  // Whether this thread is one beside the steps.
  bool IsBeside() const { return beside_ != nullptr && std::this_thread::get_id() != beside_->steps; }
  // Copies piece by piece on the stream beside the steps: while the device copies a piece, the host copies another
  // between its pinned buffer and `host`.
  void ReadBeside(int64_t offset, int64_t size_bytes, std::byte* host) const;
  void WriteBeside(int64_t offset, int64_t size_bytes, const std::byte* host);

  // Does `work` unless the device has failed; remembers the error that it throws.
  template <typename Work>
  bool Attempt(const Work& work) const;

  at::Tensor bytes_;
  Converter converter_;
  // Where overlapping moves pass through. It is made with the arena, which may take all memory that is left.
  at::Tensor bounce_;
  std::unique_ptr<Beside> beside_;
  mutable std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  mutable absl::Status error_;  // the first; guarded by mutex_
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_TENSOR_STORAGE_H_
