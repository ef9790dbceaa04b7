#include "models/ops/cpu_kernels.h"

#include <cpuid.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

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

const Kernels& GetKernels() {
  static const Kernels* const chosen = Choose();
  return *chosen;
}

}  // namespace berth::ops::cpu
