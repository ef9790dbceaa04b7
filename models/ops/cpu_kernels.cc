#include "models/ops/cpu_kernels.h"

#include <cpuid.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

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

// g++ 12 has no name for it.
bool HasAvxVnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || eax < 1) return false;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
}

// Whether the next set is faster on this machine, which runs both. An Emerald Rapids begins a dot product of bfloat16
// pairs every second cycle, and two products of float32 in each (MultiplyRegisters of matmul_bench.cc). So widened
// numbers are multiplied twice as fast. Intel's other processors with AVX-VNNI are taken to be alike.
bool IsSlow(const Kernels& kernels) {
  return strcmp(kernels.capability, "avx512_bf16") == 0 && __builtin_cpu_is("intel") != 0 && HasAvxVnni();
}

// The best set that the machine has, or the one that the environment names.
const Kernels* Choose() {
  const char* const named = getenv("BERTH_CPU_CAPABILITY");
  const Kernels* best = nullptr;
  for (const Kernels* set : kKernelSets) {
    if (!IsSupported(*set)) continue;
    if (best == nullptr && !IsSlow(*set)) best = set;
    if (named != nullptr && strcmp(named, set->capability) == 0) return set;
  }
  return best;
}

// Whether it is this set or one that extends it.
bool IsNamed(const Kernels& kernels, const char* beginning) {
  return strncmp(kernels.capability, beginning, strlen(beginning)) == 0;
}

}  // namespace

const char* MissingInstructions(const Kernels& kernels) {
  const bool amx = IsNamed(kernels, "amx"), bf16 = amx || IsNamed(kernels, "avx512_bf16");
  if (bf16 || IsNamed(kernels, "avx512")) {
    if (__builtin_cpu_supports("x86-64-v4") == 0) return "AVX-512";
    const bool vnni = bf16 || IsNamed(kernels, "avx512_vnni");
    if (vnni && __builtin_cpu_supports("avx512vnni") == 0) return "AVX512_VNNI";
    if (bf16 && __builtin_cpu_supports("avx512bf16") == 0) return "AVX512_BF16";
    const bool emulated = strcmp(kernels.capability, "amx_emulated") == 0;
    return amx && !emulated && !HasAmx() ? "AMX for bfloat16 and bytes" : nullptr;
  }
  if (IsNamed(kernels, "avx2")) {
    if (__builtin_cpu_supports("x86-64-v3") == 0) return "AVX2";
    const bool vnni = strcmp(kernels.capability, "avx2_vnni") == 0;
    return vnni && !HasAvxVnni() ? "AVX-VNNI" : nullptr;
  }
  return nullptr;
}

const Kernels& GetKernels() {
  static const Kernels* const chosen = Choose();
  return *chosen;
}

}  // namespace berth::ops::cpu
