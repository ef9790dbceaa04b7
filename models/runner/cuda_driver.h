// What NVIDIA's driver says of a GPU, asked before anything else of CUDA is loaded. So a start without a GPU names its
// cause, which LibTorch does not. No torch here. Thread-compatible.
#ifndef BERTH_MODELS_RUNNER_CUDA_DRIVER_H_
#define BERTH_MODELS_RUNNER_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace berth {

// The driver's functions, by their names without "cu". Tests fill in their own. Each returns a CUresult, 0 on success.
struct CudaDriver {
  int (*init)(unsigned flags) = nullptr;
  int (*driver_get_version)(int* version) = nullptr;
  int (*device_get_count)(int* count) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*device_get_name)(char* name, int length, int device) = nullptr;
  int (*device_get_attribute)(int* value, int attribute, int device) = nullptr;
  int (*device_total_mem)(size_t* bytes, int device) = nullptr;
  int (*get_error_string)(int error, const char** text) = nullptr;
};

// NOT_FOUND: the library is not there, so no driver is installed. FAILED_PRECONDITION: it lacks a function.
absl::StatusOr<CudaDriver> LoadCudaDriver(const std::string& library = "libcuda.so.1");

struct Gpu {
  std::string name;      // "NVIDIA H200"
  int capability = 0;    // compute capability: 90 is 9.0
  int cuda_version = 0;  // the newest that the driver supports: 13000 is 13.0
  int64_t memory_bytes = 0;

  // "NVIDIA H200, compute capability 9.0, 139.8 GiB, driver for CUDA 13.0".
  std::string ToString() const;
};

// Returns the first GPU that the process sees. FAILED_PRECONDITION: there is none, or it cannot run the kernels; the
// message says why, and what helps.
absl::StatusOr<Gpu> InspectGpu(const CudaDriver& driver);

// Makes one GPU the only one that the process sees, so that everything below calls it GPU 0. `index` counts the GPUs of
// CUDA_VISIBLE_DEVICES, or else CUDA's. Sets CUDA_VISIBLE_DEVICES. INVALID_ARGUMENT: the variable names fewer.
// REQUIRES: nothing of CUDA has started; no other thread runs.
absl::Status ShowOnlyGpu(int index);

}  // namespace berth

#endif  // BERTH_MODELS_RUNNER_CUDA_DRIVER_H_
