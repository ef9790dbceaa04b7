// The CUDA kernels: the same operations on the same arguments as cpu/kernels.h, whose pointers are then of the device's
// memory. They are compiled into a library of their own, libberth_cuda.so, which the server does not link: it is loaded
// when a GPU is asked for (models/runner/device.cc). What crosses that border is this table, plain data.
//
// An entry enqueues its work on the stream and returns without waiting. No entry allocates; scratch is the caller's.
// A row may have no tokens (GraphShape in step_batch.h): its unit and its blocks are not looked at.
// Sums are in float32 (a draw's in double), and for one token their order depends on positions only, never on the batch
// or the chunk.
// Engine thread only, as all kernels are.
//
// To add a kernel: 1. its entry here; 2. its code in a .cu beside, which kernels.bzl lists and table.cc names; 3. the
// dispatch in the ops file that has the CPU kernel's. The tests of the ops run it, emulated on the CPU.
#ifndef BERTH_MODELS_OPS_CUDA_KERNELS_H_
#define BERTH_MODELS_OPS_CUDA_KERNELS_H_

#include <stdint.h>

#include "models/ops/cpu_kernels.h"
#include "models/sampling/sample_args.h"

namespace berth::ops::cuda {

// The step, as far as launches depend on it.
struct Work {
  int64_t num_tokens;
  int64_t num_rows;
  const int64_t* tiles;  // [num_tiles, 2], device memory: row, first query of the tile within the row
  int64_t num_tiles;
  int64_t longest_row;  // in tokens
  void* stream;         // cudaStream_t
};

// What an entry returns; any other number is a cudaError_t.
enum Result : int {
  kLaunched = 0,
  kNotCovered = -1,  // nothing was done: there is no code for these sizes
};

struct Kernels {
  int64_t size_bytes;   // sizeof(Kernels): a library of another version is refused
  const char* name;     // of what they were compiled for
  bool on_host_memory;  // emulated: the pointers are the CPU's
  int (*rms_norm[2])(const RmsNormArgs&, const Work&);
  int (*activation[2])(const ActivationArgs&, const Work&);
  int (*rotary[2])(const RotaryArgs&, const Work&);
  int (*write_kv[2])(const WriteKvArgs&, const Work&);
  int (*attention[2])(const AttentionArgs&, const SplitKv&, const Work&);
  int (*bidirectional_attention[2])(const BidirectionalAttentionArgs&, const SplitKv&, const Work&);
  int (*conv[2])(const ConvArgs&, const Work&);
  int (*mamba_scan[2])(const MambaScanArgs&, const Work&);
  int (*mamba2_scan[2])(const Mamba2ScanArgs&, const Work&);
  int (*delta_net[2])(const DeltaNetArgs&, const Work&);
  int (*rg_lru[2])(const RgLruArgs&, const Work&);
  int (*int8_matmul[2])(const Int8MatMulArgs&, const Work&);
  int (*expand_int8[2])(const ExpandInt8Args&, const Work&);
  int (*expert_matmul[2])(const ExpertMatMulArgs&, const Work&);
  int (*greedy)(const GreedyArgs&, void* stream);
  int (*sample)(const SampleArgs&, void* stream);
};

}  // namespace berth::ops::cuda

// The one symbol that the library exports.
extern "C" const berth::ops::cuda::Kernels* BerthCudaKernels();

#endif  // BERTH_MODELS_OPS_CUDA_KERNELS_H_
