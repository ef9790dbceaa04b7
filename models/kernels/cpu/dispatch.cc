#include <string.h>

#include "models/kernels/cpu/kernels.h"

namespace berth::cpu {
namespace {

const Kernels* Best() {
  if (IsSupported(avx512::kKernels)) return &avx512::kKernels;
  if (IsSupported(avx2::kKernels)) return &avx2::kKernels;
  return &baseline::kKernels;
}

const Kernels*& Current() {
  static const Kernels* current = Best();
  return current;
}

}  // namespace

int64_t AttentionScratchFloats(const AttentionArgs& args) {
  const int64_t lanes = kQueryTile * (args.q_heads / args.kv.kv_heads);
  return lanes * (args.kv.key_dim + args.kv.value_dim + 2) + args.kv.block_tokens;
}

int64_t SpanAttentionScratchFloats(const SpanAttentionArgs& args) {
  const int64_t lanes = kQueryTile * (args.q_heads / args.kv_heads);
  const int64_t span = args.blocks == nullptr ? kPackedSpan : args.block_tokens;
  return lanes * (args.key_dim + args.value_dim + 2) + span;
}

bool IsSupported(const Kernels& kernels) {
  if (strcmp(kernels.capability, "avx512") == 0) return __builtin_cpu_supports("x86-64-v4") != 0;
  if (strcmp(kernels.capability, "avx2") == 0) return __builtin_cpu_supports("x86-64-v3") != 0;
  return true;
}

const Kernels& GetKernels() { return *Current(); }

void UseKernels(const Kernels& kernels) { Current() = &kernels; }

}  // namespace berth::cpu
