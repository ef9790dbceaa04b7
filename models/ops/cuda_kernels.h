// The CUDA kernels: the operations of op_list.h on the arguments that the CPU's kernels take too, whose pointers are
// then of the device's memory. They are compiled into a library of their own, libberth_cuda.so, which the server does
// not link: it is loaded when a GPU is asked for (models/runner/device.cc). What crosses that border is this table,
// plain data.
//
// An entry enqueues its work on the stream and returns without waiting. No entry allocates; scratch is the caller's.
// A row may have no tokens (GraphShape in step_batch.h): its unit and its blocks are not used.
// Sums are in float32 (a draw's in double), and for one token their order depends on positions only, never on the batch
// or the chunk. Products are the exception: few rows and many have different kernels. So is FlashInfer's attention.
// Engine thread only, as all kernels are.
#ifndef BERTH_MODELS_OPS_CUDA_KERNELS_H_
#define BERTH_MODELS_OPS_CUDA_KERNELS_H_

#include <stdint.h>

#include "models/kernels/cuda/launch.h"
#include "models/ops/op_list.h"
#include "models/sampling/sample_args.h"

namespace berth::ops::cuda {

// Returns a Result or a cudaError_t.
template <typename Args>
using Kernel = int (*)(const Args& args, const LaunchParams& launch);

struct Kernels {
  int64_t size_bytes;   // sizeof(Kernels): a library of another version is refused
  const char* name;     // of what they were compiled for
  bool on_host_memory;  // emulated: the pointers are the CPU's
#define BERTH_ENTRY(entry, Function, Args) Kernel<Args> entry[2];  // by TypeIndex of the activations
  BERTH_OPS(BERTH_ENTRY)
  BERTH_CUDA_OPS(BERTH_ENTRY)
#undef BERTH_ENTRY
  // The bytes of AttentionArgs::scratch, for attention in bfloat16. Null: 0.
  int64_t (*attention_scratch_bytes)(const AttentionArgs& args, const LaunchParams& launch);
};

}  // namespace berth::ops::cuda

// The one symbol that the library exports.
extern "C" const berth::ops::cuda::Kernels* BerthCudaKernels();

#endif  // BERTH_MODELS_OPS_CUDA_KERNELS_H_
