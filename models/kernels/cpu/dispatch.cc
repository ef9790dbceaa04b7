#include "models/kernels/cpu/kernels.h"

namespace berth::cpu {

int64_t AttentionScratchFloats(const AttentionArgs& args) {
  const int64_t lanes = kQueryTile * (args.q_heads / args.kv.kv_heads);
  return lanes * (args.kv.key_dim + args.kv.value_dim + 2) + args.kv.block_tokens;
}

const Kernels& GetKernels() {
  static const Kernels* const kernels = [] {
    if (__builtin_cpu_supports("x86-64-v4")) return &avx512::kKernels;
    if (__builtin_cpu_supports("x86-64-v3")) return &avx2::kKernels;
    return &baseline::kKernels;
  }();
  return *kernels;
}

}  // namespace berth::cpu
