// The CPU kernels: free functions over raw pointers, compiled once per instruction set and chosen at run time. Each
// computes the items [begin, end) of its work, so that the caller can split the work over threads (parallel.h).
//
// Their code is in models/ops/<operation>/cpu*.inc and models/kernels/cpu. They use no torch and no standard-library
// template: an inline function compiled for AVX-512 must never be the copy that the linker picks for an older machine.
// A bfloat16 is passed as its 16 bits. All sums are in float32.
//
// For one token the order of every sum depends on positions only, not on the batch or the prefill chunk. In mamba2_scan
// and delta_net it also depends on the chunk.
#ifndef BERTH_MODELS_OPS_CPU_KERNELS_H_
#define BERTH_MODELS_OPS_CPU_KERNELS_H_

#include <stdint.h>

#include "models/ops/op_list.h"

namespace berth::ops::cpu {

// An operation's code on one instruction set, for activations of one type.
template <typename Args>
struct Kernel {
  // `scratch`: scratch_bytes(args), from a cache line on, which no other worker uses meanwhile.
  void (*run)(const Args& args, int64_t begin, int64_t end, char* scratch);
  int64_t (*scratch_bytes)(const Args& args);
};

struct Kernels {
  const char* capability;                                          // the namespace of the set, "avx2" for example
#define BERTH_ENTRY(entry, Function, Args) Kernel<Args> entry[2];  // by TypeIndex of the activations
  BERTH_OPS(BERTH_ENTRY)
  BERTH_CPU_OPS(BERTH_ENTRY)
#undef BERTH_ENTRY
  MatMulLayout (*matmul_layout[2])(const MatMulArgs& args);
};

// The best set that this machine runs; or the one that the environment's BERTH_CPU_CAPABILITY names, if the machine
// runs it. Always the same one.
const Kernels& GetKernels();
// The instructions of a set that this machine lacks, in words; null: it runs the set.
const char* MissingInstructions(const Kernels& kernels);
inline bool IsSupported(const Kernels& kernels) { return MissingInstructions(kernels) == nullptr; }

// The sets, best first. To add one: the copts in BUILD, isa/kernels_NAME.cc, a namespace and a place in kKernelSets
// here, and its instructions in MissingInstructions.
//
// avx512_bf16 with matrix tiles.
namespace amx {
extern const Kernels kKernels;
}
// avx512_vnni with dot products of bfloat16 pairs.
namespace avx512_bf16 {
extern const Kernels kKernels;
}
// avx512 with dot products of bytes.
namespace avx512_vnni {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
// avx2 with dot products of bytes.
namespace avx2_vnni {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace baseline {
extern const Kernels kKernels;
}

inline constexpr const Kernels* kKernelSets[] = {
    &amx::kKernels,       &avx512_bf16::kKernels, &avx512_vnni::kKernels, &avx512::kKernels,
    &avx2_vnni::kKernels, &avx2::kKernels,        &baseline::kKernels,
};

// These sets give the results of the sets without "emulated", by instructions that older machines have, for tests
// (:cpu_kernels_amx_emulated and :cpu_kernels_avx2_vnni_emulated).
namespace amx_emulated {
extern const Kernels kKernels;
}
namespace avx2_vnni_emulated {
extern const Kernels kKernels;
}

}  // namespace berth::ops::cpu

#endif  // BERTH_MODELS_OPS_CPU_KERNELS_H_
