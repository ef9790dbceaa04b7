// Devices: the CPU, which is linked, and CUDA, whose libraries are loaded only when asked for. Thread-compatible.
#ifndef BERTH_MODELS_RUNNER_DEVICE_H_
#define BERTH_MODELS_RUNNER_DEVICE_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/storage.h"
#include "models/device_choice.h"
#include "models/kernels/cuda/graph.h"
#include "models/ops/cuda_kernels.h"

namespace berth {

// Chooses the device that `name` asks for: "cpu"; "cuda", the first GPU; "cuda:N"; or "auto", the first GPU if it
// works, else the CPU. Where there are several GPUs, the process then sees one. FAILED_PRECONDITION: the GPU cannot be
// used; the message names the cause. Call it once, before other threads run.
absl::StatusOr<DeviceChoice> ChooseDevice(const std::string& name);

// Returns the device of a choice: "cpu" or "cuda". FAILED_PRECONDITION: libtorch_cuda.so cannot be loaded, or it finds
// no GPU.
absl::StatusOr<at::Device> OpenDevice(const std::string& name);

// Returns the GPU's memory. What the allocator keeps for later tensors is not free. INTERNAL: the GPU fails.
absl::StatusOr<DeviceMemory> GetDeviceMemory(const at::Device& device);
// Gives what the allocator keeps back to the GPU. Later tensors have to ask the GPU for memory again, which waits for
// all its work: not for a server that has run its steps. INTERNAL: the GPU fails.
absl::Status ReturnFreeMemory(const at::Device& device);

// Has ATen's products of 16-bit numbers add in float32. ATen's default may add parts of a sum in 16 bits.
void SumInFloat32();

// Loads the device's own kernels (libberth_cuda.so); null on the CPU, whose kernels are linked. FAILED_PRECONDITION:
// there are none, so ATen's references run.
absl::StatusOr<const ops::cuda::Kernels*> LoadDeviceKernels(const at::Device& device);

// Loads what records CUDA graphs; it lives as long as the program. FAILED_PRECONDITION: the device has no graphs, the
// library is not there, or the GPU fails.
absl::StatusOr<ops::cuda::GraphRecorder*> LoadGraphRecorder(const at::Device& device);

// One range of `size_bytes` on the device: the arena. With `kernels`, it converts checkpoints without the host.
// RESOURCE_EXHAUSTED: the device has not that much.
absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateDeviceStorage(const at::Device& device, int64_t size_bytes,
                                                                  const ops::cuda::Kernels* kernels = nullptr);

}  // namespace berth

#endif  // BERTH_MODELS_RUNNER_DEVICE_H_
