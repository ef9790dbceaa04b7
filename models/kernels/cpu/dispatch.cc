#include <string.h>

#include "models/kernels/cpu/kernels.h"

namespace berth::cpu {
namespace {

const Kernels* Best() {
  if (IsSupported(avx512_bf16::kKernels)) return &avx512_bf16::kKernels;
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
  const int64_t value_dim = PanelCount(args.kv.value.dim) * kPanel;
  constexpr int64_t kPieces = 7, kLine = 16;  // pieces that begin on a cache line
  // For each lane its query, its sums and its state; for each position of a span its key and value, twice.
  return lanes * (args.kv.key.dim + value_dim + 4) + 2 * kAttentionSpan * (args.kv.key.dim + value_dim) +
         kPieces * kLine;
}

int64_t SpanAttentionScratchFloats(const SpanAttentionArgs& args) {
  const int64_t lanes = kQueryTile * (args.q_heads / args.kv_heads);
  const int64_t span = args.blocks == nullptr ? kPackedSpan : args.block_tokens;
  return lanes * (args.key_dim + args.value_dim + 2) + span;
}

int64_t MambaTiles(const MambaScanArgs& args) {
  return args.groups * ((args.channels / args.groups + kMambaTile - 1) / kMambaTile);
}

int64_t MambaScratchFloats(const MambaScanArgs& args) { return 2 * args.state_dim * kMambaTile; }

int64_t Mamba2ScratchFloats(const Mamba2ScanArgs& args) {
  constexpr int64_t kQ = kMamba2Chunk;
  const int64_t columns = (args.head_dim + kColumnPad - 1) / kColumnPad * kColumnPad;
  return args.heads_per_item * args.state_dim * columns + 2 * args.state_dim * kQ + 2 * kQ * kQ + 3 * kQ * columns;
}

int64_t DeltaNetScratchFloats(const DeltaNetArgs& args) {
  constexpr int64_t kQ = kDeltaChunk;
  const int64_t columns = (args.value_dim + kColumnPad - 1) / kColumnPad * kColumnPad;
  return args.key_dim * columns + 3 * kQ * args.key_dim + 3 * kQ * kQ + 2 * kQ * columns;
}

int64_t RgLruChunks(const RgLruArgs& args) {
  return args.width / args.block_width * ((args.block_width + kRgLruChunk - 1) / kRgLruChunk);
}

bool IsSupported(const Kernels& kernels) {
  if (strcmp(kernels.capability, "avx512_bf16") == 0) {
    return __builtin_cpu_supports("x86-64-v4") != 0 && __builtin_cpu_supports("avx512bf16") != 0 &&
           __builtin_cpu_supports("avx512vnni") != 0;
  }
  if (strcmp(kernels.capability, "avx512") == 0) return __builtin_cpu_supports("x86-64-v4") != 0;
  if (strcmp(kernels.capability, "avx2") == 0) return __builtin_cpu_supports("x86-64-v3") != 0;
  return true;
}

const Kernels& GetKernels() { return *Current(); }

void UseKernels(const Kernels& kernels) { Current() = &kernels; }

}  // namespace berth::cpu
