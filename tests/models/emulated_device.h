// Gives the emulated CUDA kernels a device's memory. The host cannot read the arena and the step's tables, as on a GPU.
// Only launches, operations of ATen's, and the arena's own copies can. Another access ends the program.
// Single-threaded.
#ifndef BERTH_TESTS_MODELS_EMULATED_DEVICE_H_
#define BERTH_TESTS_MODELS_EMULATED_DEVICE_H_

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <unordered_map>
#include <utility>

#include "cache/storage.h"
#include "tests/models/kernels/cuda_emulation/device_memory.h"

namespace berth {

// While it lives, ATen's operations may use the device's memory, and tables lie in it.
class EmulatedDevice {
 public:
  EmulatedDevice() : previous_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(Tables::Instance());
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Begin, &End).scopes({at::RecordScope::FUNCTION}));
  }
  ~EmulatedDevice() {
    at::removeCallback(handle_);
    c10::SetCPUAllocator(previous_);
  }
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;

  // How many tables have been allocated so far, by all devices.
  static int num_tables() { return Tables::Instance()->count; }

 private:
  // Allocates on pages of the device what has the size of a step's tables (StagingBuffer's least). Other tensors of the
  // same size are the device's too, as all of them are on a GPU.
  struct Tables final : c10::Allocator {
    static constexpr size_t kTablesBytes = size_t{64} << 10;

    static Tables* Instance() {
      static auto* const tables = new Tables();
      return tables;
    }
    c10::DataPtr allocate(size_t size_bytes) override {
      if (size_bytes != kTablesBytes) return c10::GetDefaultCPUAllocator()->allocate(size_bytes);
      void* const pages =
          mmap(nullptr, kTablesBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
      if (pages == MAP_FAILED) std::abort();
      ++count;
      memory.emplace(pages, std::make_unique<cuda_emulation::DeviceMemory>(pages, kTablesBytes));
      return {pages, pages, &Free, at::kCPU};
    }
    void copy_data(void* to, const void* from, size_t size_bytes) const override {
      default_copy_data(to, from, size_bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return &Free; }
    static void Free(void* allocated) {
      if (Instance()->memory.erase(allocated) == 0) return c10::GetDefaultCPUAllocator()->raw_deleter()(allocated);
      munmap(allocated, kTablesBytes);
    }

    std::unordered_map<void*, std::unique_ptr<cuda_emulation::DeviceMemory>> memory;
    int count = 0;
  };

  static std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction&) {
    cuda_emulation::BeginDeviceAccess();
    return nullptr;
  }
  static void End(const at::RecordFunction&, at::ObserverContext*) { cuda_emulation::EndDeviceAccess(); }

  c10::Allocator* previous_;
  at::CallbackHandle handle_;
};

// An arena in the device's memory.
class EmulatedDeviceStorage final : public ArenaStorage {
 public:
  // `host`: of whole pages.
  explicit EmulatedDeviceStorage(std::unique_ptr<ArenaStorage> host)
      : host_(std::move(host)), memory_(host_->base(), static_cast<size_t>(host_->size_bytes())) {}

  std::byte* base() const override { return host_->base(); }
  int64_t size_bytes() const override { return host_->size_bytes(); }
  void Move(int64_t from, int64_t to, int64_t size_bytes) override {
    const cuda_emulation::DeviceAccess access;
    host_->Move(from, to, size_bytes);
  }
  void Convert(const StateConversion& conversion) override {
    const cuda_emulation::DeviceAccess access;
    host_->Convert(conversion);
  }
  void Read(int64_t offset, int64_t size_bytes, std::byte* out) const override {
    const cuda_emulation::DeviceAccess access;
    host_->Read(offset, size_bytes, out);
  }
  void Write(int64_t offset, int64_t size_bytes, const std::byte* bytes) override {
    const cuda_emulation::DeviceAccess access;
    host_->Write(offset, size_bytes, bytes);
  }
  void Fence() override { host_->Fence(); }
  absl::Status status() const override { return host_->status(); }
  void Poison(int64_t offset, int64_t size_bytes) override {
    const cuda_emulation::DeviceAccess access;
    host_->Poison(offset, size_bytes);
  }

 private:
  std::unique_ptr<ArenaStorage> host_;
  cuda_emulation::DeviceMemory memory_;
};

}  // namespace berth

#endif  // BERTH_TESTS_MODELS_EMULATED_DEVICE_H_
