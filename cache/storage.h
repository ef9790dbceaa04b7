// The bytes behind the arena: one reserved range on one device. Units move between pools inside it; it never grows.
//
// Thread-compatible; used by the engine thread. The CUDA storage lives in models/, the only place that knows torch.
#ifndef BERTH_CACHE_STORAGE_H_
#define BERTH_CACHE_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace berth {

class ArenaStorage {
 public:
  virtual ~ArenaStorage() = default;

  // Device address of the first byte, 4096-byte aligned, stable for the storage's life.
  virtual std::byte* base() const = 0;
  virtual int64_t size_bytes() const = 0;

  // Copies `size_bytes` bytes from offset `from` to offset `to`; the ranges may overlap. Done, in the device's order of
  // work, before any step that follows. REQUIRES: both ranges lie inside.
  virtual void Move(int64_t from, int64_t to, int64_t size_bytes) = 0;

  // Writes what `convert` makes of the `from_bytes` bytes at `from` to the `to_bytes` bytes at `to`, in the same order
  // of work as Move. It gets both ranges in host memory, the second with what is there or with anything, and writes all
  // of it that is ever read. REQUIRES: both ranges lie inside and do not overlap.
  using Conversion = absl::FunctionRef<void(const std::byte* from, std::byte* to)>;
  virtual void Convert(int64_t from, int64_t from_bytes, int64_t to, int64_t to_bytes, Conversion convert) = 0;

  // Copy bytes out and in; done when they return. REQUIRES: the range lies inside.
  virtual void Read(int64_t offset, int64_t size_bytes, std::byte* out) const = 0;
  virtual void Write(int64_t offset, int64_t size_bytes, const std::byte* bytes) = 0;

  // From here on other threads may Read and Write too: what they do comes after all of the device's work so far, and
  // need not wait for what follows. They have done it when this is called again.
  virtual void Fence() {}

  // Sets `size_bytes` bytes from `offset` to 0xFF: a NaN in every float type. REQUIRES: the range lies inside.
  virtual void Poison(int64_t offset, int64_t size_bytes) = 0;
};

// Anonymous memory of the host, on huge pages where the kernel gives them; pages are touched when first used.
// RESOURCE_EXHAUSTED when the range cannot be reserved.
absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateHostStorage(int64_t size_bytes);

}  // namespace berth

#endif  // BERTH_CACHE_STORAGE_H_
