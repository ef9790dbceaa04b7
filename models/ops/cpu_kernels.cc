#include "models/ops/cpu_kernels.h"

#include <cpuid.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

namespace berth::ops {

int64_t AttentionScratchFloats(const AttentionArgs& args) {
  constexpr int64_t kRows = 16;  // of a matrix tile, of which each may have a lane more than there are
  const int64_t in_use = kQueryTile * (args.q_heads / args.kv.kv_heads);
  const int64_t lanes = in_use + (in_use + kRows - 1) / kRows;
  const int64_t value_dim = PanelCount(args.kv.value.dim) * kPanel;
  constexpr int64_t kPieces = 7, kLine = 16;  // pieces that begin on a cache line
  // For each lane its query, its sums and its state; for each position of a span its key and value, twice.
  const int64_t key_dim = PanelCount(args.kv.key.dim) * kPanel;
  return lanes * (key_dim + value_dim + 4) + 2 * kAttentionSpan * (key_dim + value_dim) + kPieces * kLine;
}

int64_t BidirectionalAttentionScratchFloats(const BidirectionalAttentionArgs& args) {
  const int64_t lanes = kQueryTile * (args.q_heads / args.kv_heads);
  const int64_t span = args.blocks == nullptr ? kPackedSpan : args.block_tokens;
  return lanes * (args.key_dim + args.value_dim + 2) + span;
}

int64_t MambaScratchFloats(const MambaScanArgs& args) { return 2 * args.state_dim * kMambaTile; }

// What the recurrences' chunks pad their sizes to: a block of matrix tiles, the widest there are.
constexpr int64_t kBlock = 32;

int64_t Mamba2ScratchFloats(const Mamba2ScanArgs& args) {
  constexpr int64_t kQ = kMamba2Chunk;
  const int64_t rows = (args.state_dim + kBlock - 1) / kBlock * kBlock;
  const int64_t columns = (args.head_dim + kBlock - 1) / kBlock * kBlock;
  // The states, one of them as pairs; B and C, B transposed; the tokens' products; x, what is kept of it, and y.
  return (args.heads_per_item + 1) * rows * columns + 2 * rows * kQ + 2 * kQ * kQ + 3 * kQ * columns;
}

int64_t DeltaNetScratchFloats(const DeltaNetArgs& args) {
  constexpr int64_t kQ = kDeltaTileChunk;
  const int64_t rows = (args.key_dim + kBlock - 1) / kBlock * kBlock;
  const int64_t columns = (args.value_dim + kBlock - 1) / kBlock * kBlock;
  const int64_t width = columns < 2 * kBlock ? 2 * kBlock : columns;  // of what goes by columns
  // A state, and columns of it as pairs; q and k, k transposed twice; tokens by tokens; corrections, twice, and y.
  return rows * columns + rows * width + 2 * kQ * rows + 4 * kQ * kQ + 3 * kQ * width;
}

}  // namespace berth::ops

namespace berth::ops::cpu {
namespace {

// Whether the processor has matrix tiles for bfloat16 and bytes, and the system lets this process, which asks for it,
// use their registers.
bool HasAmx() {
  static const bool has = [] {
    constexpr unsigned kBF16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBF16 | kTile | kInt8;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kAll) != kAll) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // <asm/prctl.h>, of Linux 5.16 and later
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

// The best set that the machine has, or the one that the environment names.
const Kernels* Choose() {
  const char* const named = getenv("BERTH_CPU_CAPABILITY");
  const Kernels* best = nullptr;
  for (const Kernels* set :
       {&amx::kKernels, &avx512_bf16::kKernels, &avx512::kKernels, &avx2::kKernels, &baseline::kKernels}) {
    if (!IsSupported(*set)) continue;
    if (best == nullptr) best = set;
    if (named != nullptr && strcmp(named, set->capability) == 0) return set;
  }
  return best;
}

const Kernels*& Current() {
  static const Kernels* current = Choose();
  return current;
}

}  // namespace

bool IsSupported(const Kernels& kernels) {
  const bool amx = strcmp(kernels.capability, "amx") == 0;
  if (amx && !HasAmx()) return false;
  if (amx || strcmp(kernels.capability, "amx_emulated") == 0 || strcmp(kernels.capability, "avx512_bf16") == 0) {
    return __builtin_cpu_supports("x86-64-v4") != 0 && __builtin_cpu_supports("avx512bf16") != 0 &&
           __builtin_cpu_supports("avx512vnni") != 0;
  }
  if (strcmp(kernels.capability, "avx512") == 0) return __builtin_cpu_supports("x86-64-v4") != 0;
  if (strcmp(kernels.capability, "avx2") == 0) return __builtin_cpu_supports("x86-64-v3") != 0;
  return true;
}

const Kernels& GetKernels() { return *Current(); }

void UseKernels(const Kernels& kernels) { Current() = &kernels; }

}  // namespace berth::ops::cpu
