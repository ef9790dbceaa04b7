// Whose kernels an operation runs: the CPU's, CUDA's, or the ATen reference. Engine thread only.
#ifndef BERTH_MODELS_OPS_BACKEND_H_
#define BERTH_MODELS_OPS_BACKEND_H_

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <cstdint>

#include "models/ops/cuda_dispatch.h"
#include "models/step/step_batch.h"

namespace berth::ops {

enum class Backend { kCpu, kCuda, kReference };

// By where x is. Emulated CUDA kernels take the CPU's tensors.
inline Backend BackendOf(const at::Tensor& x) {
  const cuda::Kernels* kernels = cuda::GetKernels();
  if (kernels != nullptr && (kernels->on_host_memory ? x.is_cpu() : x.is_cuda())) return Backend::kCuda;
  return x.is_cpu() ? Backend::kCpu : Backend::kReference;
}

// ATen's current stream, which its own operations run on.
inline void* StreamOf(const at::Tensor& x) {
  if (x.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()).native_handle();
}

// Of an operation on x's rows alone.
inline cuda::Work WorkOf(const at::Tensor& x) {
  cuda::Work work = {};
  work.num_tokens = x.size(0);
  work.stream = StreamOf(x);
  return work;
}

// Of an operation on the step's rows.
inline cuda::Work WorkOf(const at::Tensor& x, const StepBatch& batch) {
  cuda::Work work = WorkOf(x);
  work.num_rows = batch.num_rows();
  work.tiles = batch.tables().tiles;
  work.num_tiles = batch.num_tiles();
  work.longest_row = batch.longest_row();
  return work;
}

// Of an entry that has code for all sizes.
inline void CheckLaunched(int result) {
  TORCH_CHECK(result == cuda::kLaunched, "a CUDA kernel cannot be launched: error ", result);
}

// Of one that has not: whether its work is on its way; else the reference has to do it.
inline bool IsLaunched(int result) {
  if (result != cuda::kNotCovered) CheckLaunched(result);
  return result == cuda::kLaunched;
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_BACKEND_H_
