// The CPU kernels: free functions over raw pointers, compiled once per instruction set and chosen at run time.
//
// Each computes the items [begin, end) of its work, so that the caller splits it over threads
// (models/ops/paged_attention/paged_attention.cc). No torch here and no standard-library templates with code in them:
// an inline function compiled for AVX-512 must never be the copy that the linker picks for an older machine. bf16
// travels as its 16 bits. All sums are in float32.
//
// For one token the order of every sum depends on positions only, never on the batch or the chunk it came in, except in
// mamba2_scan and delta_net, where it depends on the chunk.
//
// To add a kernel: 1. its arguments and a table entry here; 2. its code in an .inc that kernels.inc includes; 3. the
// dispatch and an ATen reference beside models/ops/paged_attention/paged_attention.cc; 4. a case in
// tests/models/kernels that compares the two.
#ifndef BERTH_MODELS_OPS_CPU_KERNELS_H_
#define BERTH_MODELS_OPS_CPU_KERNELS_H_

#include <stdint.h>

#include "models/ops/bidirectional_attention/bidirectional_attention_args.h"
#include "models/ops/causal_conv/causal_conv_args.h"
#include "models/ops/elementwise/elementwise_args.h"
#include "models/ops/gated_delta_net/gated_delta_net_args.h"
#include "models/ops/mamba/mamba_args.h"
#include "models/ops/matmul/matmul_args.h"
#include "models/ops/paged_attention/paged_attention_args.h"
#include "models/ops/rg_lru/rg_lru_args.h"

namespace berth::ops {

inline constexpr int64_t kColumnPad = 16;  // columns of matrix products are padded to a multiple, the widest vector

// Index of a storage type in the tables.
enum TypeIndex { kF32 = 0, kBF16 = 1 };

}  // namespace berth::ops

namespace berth::ops::cpu {

struct Kernels {
  const char* capability;  // "amx", "avx512_bf16", "avx512", "avx2", "baseline"
  void (*rms_norm[2])(const RmsNormArgs&, int64_t begin, int64_t end);
  void (*add[2])(const AddArgs&, int64_t begin, int64_t end);
  void (*activation[2])(const ActivationArgs&, int64_t begin, int64_t end);
  void (*rotary[2])(const RotaryArgs&, int64_t begin, int64_t end);
  void (*write_kv[2])(const WriteKvArgs&, int64_t begin, int64_t end);
  void (*attention[2])(const AttentionArgs&, int64_t begin, int64_t end, int64_t slot);
  void (*conv[2])(const ConvArgs&, int64_t begin, int64_t end);
  void (*bidirectional_attention[2])(const BidirectionalAttentionArgs&, int64_t begin, int64_t end, int64_t slot);
  void (*mamba_scan[2])(const MambaScanArgs&, int64_t begin, int64_t end, int64_t slot);
  void (*mamba2_scan[2])(const Mamba2ScanArgs&, int64_t begin, int64_t end, int64_t slot);
  void (*delta_net[2])(const DeltaNetArgs&, int64_t begin, int64_t end, int64_t slot);
  void (*rg_lru[2])(const RgLruArgs&, int64_t begin, int64_t end);
  // By the type of x and out.
  void (*prepare_inputs[2])(const MatMulArgs&, int64_t begin, int64_t end);
  void (*matmul[2])(const MatMulArgs&, int64_t begin, int64_t end);
  int64_t (*matmul_tiles[2])(WeightKind kind, int64_t rows);
  // By the type of the weight.
  void (*pack_matrix[2])(const PackMatrixArgs&, int64_t begin, int64_t end);
};

// The best set that this machine runs; else the one that the environment's BERTH_CPU_CAPABILITY names, if the machine
// runs it, or that UseKernels set.
const Kernels& GetKernels();
// For tests of every set. REQUIRES: no step is running; the machine has the instructions.
void UseKernels(const Kernels& kernels);
// Whether this machine has the instructions of a set, by its capability.
bool IsSupported(const Kernels& kernels);

// avx512_bf16 with matrix tiles, and the same with tiles in plain C++, for tests (:kernels_amx_emulated).
namespace amx {
extern const Kernels kKernels;
}
namespace amx_emulated {
extern const Kernels kKernels;
}
// avx512 with dot products of bfloat16 pairs and of bytes.
namespace avx512_bf16 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace baseline {
extern const Kernels kKernels;
}

}  // namespace berth::ops::cpu

#endif  // BERTH_MODELS_OPS_CPU_KERNELS_H_
