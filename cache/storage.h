// The bytes behind the arena: one reserved range on one device. Units move inside it; it never grows.
//
// Thread-compatible; the engine thread uses it. The CUDA storage is in models/, which may use torch.
#ifndef BERTH_CACHE_STORAGE_H_
#define BERTH_CACHE_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/spec.h"

namespace berth {

// Turns a unit of states into a checkpoint, or back; see checkpoint.h.
struct StateConversion {
  absl::Span<const CheckpointTensor> tensors;  // of the plan
  bool expands;                                // the checkpoint into the states; else quantises the states
  int64_t states, states_bytes;                // where the unit of states begins, and its size
  int64_t checkpoint, checkpoint_bytes;
};

class ArenaStorage {
 public:
  virtual ~ArenaStorage() = default;

  // Device address of the first byte, 4096-byte aligned, stable for the storage's life.
  virtual std::byte* base() const = 0;
  virtual int64_t size_bytes() const = 0;

  // Copies `size_bytes` bytes from offset `from` to offset `to`; the ranges may overlap. On the device, the copy comes
  // before any later step. REQUIRES: both ranges lie inside.
  virtual void Move(int64_t from, int64_t to, int64_t size_bytes) = 0;

  // Quantises states, or expands a checkpoint, in the same order of work as Move. REQUIRES: both units lie inside and
  // do not overlap.
  virtual void Convert(const StateConversion& conversion) = 0;

  // Copy bytes out of and into the arena; complete when they return. REQUIRES: the range lies inside.
  virtual void Read(int64_t offset, int64_t size_bytes, std::byte* out) const = 0;
  virtual void Write(int64_t offset, int64_t size_bytes, const std::byte* bytes) = 0;

  // What other threads Read and Write at once: the end of a step may have to wait for as much.
  virtual int64_t piece_bytes() const { return 256 << 10; }  // about ten microseconds' worth

  // Allows other threads to Read and Write until the next call. Their copies come after all of the device's work so
  // far, and do not wait for later work. REQUIRES: the copies that the last call allowed are complete.
  virtual void Fence() {}

  // Returns the device's first error in any of these calls. After it they do nothing, Read gives 0xFF, and what the
  // arena holds is undefined. DATA_LOSS: the device is lost. Thread-safe.
  virtual absl::Status status() const { return absl::OkStatus(); }

  // Sets `size_bytes` bytes from `offset` to 0xFF: a NaN in every float type. REQUIRES: the range lies inside.
  virtual void Poison(int64_t offset, int64_t size_bytes) = 0;
};

// Reserves anonymous memory of the host, on huge pages where the kernel offers them. Pages are touched at first use.
// RESOURCE_EXHAUSTED when the range cannot be reserved.
absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateHostStorage(int64_t size_bytes);

}  // namespace berth

#endif  // BERTH_CACHE_STORAGE_H_
