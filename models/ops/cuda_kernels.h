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

namespace berth::ops {

// tokens[row] = the lowest argmax of logits, or `bad_token` where one is NaN or +inf or none is above -inf.
struct GreedyArgs {
  const float* logits;  // [rows, stride]
  int64_t rows, stride, vocab;
  int32_t* tokens;  // [rows]
  int32_t bad_token;
};

// How one row's token is chosen, by the rules of models/sampling/sampler.h.
struct SampleParams {
  double inverse_temperature;  // 0: greedy, and the rest is not read
  double uniform;              // the draw, in [0, 1)
  double top_p;                // 1 or more: all tokens
  double min_p;                // at most 1; 0: all tokens
  int64_t top_k;               // 0: all tokens
};

// tokens[row] = the token that Sampler chooses, or `bad_token` as GreedyArgs says. Of vocabularies up to 2^21.
struct SampleArgs {
  const float* logits;  // [rows, stride]
  int64_t rows, stride, vocab;
  const SampleParams* params;  // [rows], device memory
  void* scratch;               // SampleScratchBytes(num_scratch, vocab), on 16 bytes
  int64_t num_scratch;         // how many rows are worked at at once
  int32_t* tokens;             // [rows]
  int32_t bad_token;
};
// Of each row that is worked at: weights, and the logits and ids of what top_k keeps.
inline constexpr int64_t SampleScratchBytes(int64_t num_scratch, int64_t vocab) {
  return num_scratch * ((vocab + 3) / 4 * 4) * 16;
}

}  // namespace berth::ops

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
