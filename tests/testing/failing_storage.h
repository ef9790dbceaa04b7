// An arena of the host that fails when a test says so: as a device's does, it then does nothing more. Thread-safe where
// ArenaStorage is.
#ifndef BERTH_TESTS_TESTING_FAILING_STORAGE_H_
#define BERTH_TESTS_TESTING_FAILING_STORAGE_H_

#include <cstring>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "cache/storage.h"

namespace berth {

class FailingStorage final : public ArenaStorage {
 public:
  // `host` does the work and must outlive it.
  explicit FailingStorage(ArenaStorage* host) : host_(host) {}

  void Fail(absl::Status error) {
    MutexLock lock(&mutex_);
    error_ = std::move(error);
  }

  std::byte* base() const override { return host_->base(); }
  int64_t size_bytes() const override { return host_->size_bytes(); }
  void Move(int64_t from, int64_t to, int64_t size_bytes) override {
    if (status().ok()) host_->Move(from, to, size_bytes);
  }
  void Convert(const StateConversion& conversion) override {
    if (status().ok()) host_->Convert(conversion);
  }
  void Read(int64_t offset, int64_t size_bytes, std::byte* out) const override {
    if (status().ok()) return host_->Read(offset, size_bytes, out);
    std::memset(out, 0xFF, static_cast<size_t>(size_bytes));
  }
  void Write(int64_t offset, int64_t size_bytes, const std::byte* bytes) override {
    if (status().ok()) host_->Write(offset, size_bytes, bytes);
  }
  int64_t piece_bytes() const override { return host_->piece_bytes(); }
  void Poison(int64_t offset, int64_t size_bytes) override {
    if (status().ok()) host_->Poison(offset, size_bytes);
  }
  absl::Status status() const override {
    MutexLock lock(&mutex_);
    return error_;
  }

 private:
  ArenaStorage* const host_;
  mutable Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_FAILING_STORAGE_H_
