// Chooses the kernels that an operation runs: the CPU's, CUDA's, or the ATen reference. Engine thread only.
#ifndef BERTH_MODELS_OPS_BACKEND_H_
#define BERTH_MODELS_OPS_BACKEND_H_

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <cstdint>

#include "models/ops/cuda_kernels.h"
#include "models/ops/parallel.h"
#include "models/step/execution.h"
#include "models/step/step_batch.h"

namespace berth::ops {

enum class Backend { kCpu, kCuda, kReference };

// Chooses by the device of x. Emulated CUDA kernels take the CPU's tensors.
inline Backend BackendOf(const at::Tensor& x, const Execution& execution) {
  const cuda::Kernels* kernels = execution.cuda_kernels;
  if (kernels != nullptr && (kernels->on_host_memory ? x.is_cpu() : x.is_cuda())) return Backend::kCuda;
  return x.is_cpu() ? Backend::kCpu : Backend::kReference;
}

// ATen's current stream, which its own operations run on.
inline void* StreamOf(const at::Tensor& x) {
  if (x.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()).native_handle();
}

// For an operation on x's rows only.
inline cuda::LaunchParams LaunchParamsFor(const at::Tensor& x) {
  cuda::LaunchParams launch = {};
  launch.num_tokens = x.size(0);
  launch.stream = StreamOf(x);
  return launch;
}

// For an operation on the step's rows.
inline cuda::LaunchParams LaunchParamsFor(const at::Tensor& x, const StepBatch& batch) {
  cuda::LaunchParams launch = LaunchParamsFor(x);
  launch.num_rows = batch.num_rows();
  launch.tiles = batch.tables().decoder.tiles;
  launch.num_tiles = batch.num_tiles();
  launch.longest_row = batch.longest_row();
  launch.max_position = batch.max_position();
  return launch;
}

// For a recurrence on a phase of the step.
inline cuda::LaunchParams LaunchParamsFor(const at::Tensor& x, const StatePhase& phase) {
  cuda::LaunchParams launch = LaunchParamsFor(x);
  launch.num_rows = phase.num_rows;
  launch.tiles = phase.tiles;
  launch.num_tiles = phase.num_tiles;
  launch.longest_row = phase.longest_row;
  return launch;
}

// For entries that have code for all sizes: throws unless the work was enqueued. A CUDA error is an AcceleratorError,
// as ATen's own are, because some mean that the device is lost (models/step/device_error.h).
inline void CheckLaunched(int result) {
  TORCH_CHECK(result >= 0, "a CUDA kernel has no code for these sizes");
  if (result == cuda::kLaunched) return;
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, result,
                              c10::str("a CUDA kernel cannot be launched: error ", result));
}

// For other entries: returns whether the work was enqueued. If not, the reference has to do it.
inline bool IsLaunched(int result) {
  if (result != cuda::kNotCovered) CheckLaunched(result);
  return result == cuda::kLaunched;
}

// Enqueues an operation on the stream of `launch`. `entry` is a member of cuda::Kernels. Returns a Result.
template <typename Args>
int RunOnCuda(cuda::Kernel<Args> (cuda::Kernels::*entry)[2], DType type, const Args& args,
              const cuda::LaunchParams& launch, const Execution& execution) {
  return (execution.cuda_kernels->*entry)[TypeIndex(type)](args, launch);
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_BACKEND_H_
