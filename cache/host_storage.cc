#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cache/checkpoint.h"
#include "cache/storage.h"

namespace berth {
namespace {

class HostStorage : public ArenaStorage {
 public:
  HostStorage(std::byte* base, int64_t size_bytes) : base_(base), size_bytes_(size_bytes) {}
  ~HostStorage() override { munmap(base_, static_cast<size_t>(size_bytes_)); }

  std::byte* base() const override { return base_; }
  int64_t size_bytes() const override { return size_bytes_; }
  void Move(int64_t from, int64_t to, int64_t size_bytes) override {
    std::memmove(base_ + to, base_ + from, static_cast<size_t>(size_bytes));
  }
  void Convert(const StateConversion& c) override {
    if (c.expands) return ExpandStates(c.tensors, base_ + c.checkpoint, base_ + c.states);
    QuantiseStates(c.tensors, base_ + c.states, base_ + c.checkpoint);
  }
  void Read(int64_t offset, int64_t size_bytes, std::byte* out) const override {
    std::memcpy(out, base_ + offset, static_cast<size_t>(size_bytes));
  }
  void Write(int64_t offset, int64_t size_bytes, const std::byte* bytes) override {
    std::memcpy(base_ + offset, bytes, static_cast<size_t>(size_bytes));
  }
  void Poison(int64_t offset, int64_t size_bytes) override {
    std::memset(base_ + offset, 0xFF, static_cast<size_t>(size_bytes));
  }

 private:
  std::byte* base_;
  int64_t size_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateHostStorage(int64_t size_bytes) {
  if (size_bytes <= 0) return absl::InvalidArgumentError(absl::StrCat("arena size is ", size_bytes, " bytes"));
  void* base = mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                    /*fd=*/-1, /*offset=*/0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("--arena: cannot reserve ", size_bytes, " bytes: ", std::strerror(errno)));
  }
  // Advice only: without huge pages the arena works the same, with more TLB misses.
  madvise(base, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);
  return std::make_unique<HostStorage>(static_cast<std::byte*>(base), size_bytes);
}

}  // namespace berth
