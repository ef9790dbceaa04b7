// Memory that only the emulated device may use: outside launches and copies the host's accesses are faults, as those to
// a GPU's memory would be. Single-threaded.
#ifndef BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_DEVICE_MEMORY_H_
#define BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_DEVICE_MEMORY_H_

#include <stddef.h>

namespace cuda_emulation {

// Makes whole pages the device's for its life; afterwards they are the host's again. REQUIRES: they stay mapped.
class DeviceMemory {
 public:
  DeviceMemory(void* pages, size_t size_bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

 private:
  void* begin_;
};

// While there is one, the device's memory can be used: a launch, an operation of ATen's, or a copy.
void BeginDeviceAccess();
void EndDeviceAccess();
class DeviceAccess {
 public:
  DeviceAccess() { BeginDeviceAccess(); }
  ~DeviceAccess() { EndDeviceAccess(); }
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace cuda_emulation

#endif  // BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_DEVICE_MEMORY_H_
