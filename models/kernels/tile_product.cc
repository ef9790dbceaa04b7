#include "models/kernels/tile_product.h"

#include <ATen/cpu/Utils.h>
#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>
#include <cpuid.h>

#include <algorithm>
#include <vector>

namespace berth::ops {
namespace {

// Rows of one item: their sums stay in the cache of one core.
constexpr int64_t kItemRows = 256;

bool HasTiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  // The system has to allow a process the tiles' registers.
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0 && at::cpu::init_amx();
}

bool& Uses() {
  static bool uses = HasTiles();
  return uses;
}

template <typename T>
T* Scratch(std::vector<T>* scratch, int64_t size) {
  if (static_cast<int64_t>(scratch->size()) < size) scratch->resize(size);
  return scratch->data();
}

// The panel's weights as pairs of bfloat16 inputs [inputs / 2][kPanel][2].
const c10::BFloat16* PairsOf(const cpu::PackedWeight& weight, int64_t panel) {
  const char* bytes = weight.panels + panel * cpu::PanelBytes(weight.kind, weight.inputs);
  if (weight.kind == cpu::kWeightBF16) return reinterpret_cast<const c10::BFloat16*>(bytes);
  static thread_local std::vector<c10::BFloat16> scratch;
  c10::BFloat16* pairs = Scratch(&scratch, weight.inputs * cpu::kPanel);
  cpu::GetKernels().expand_panel(weight, panel, pairs);
  return pairs;
}

}  // namespace

bool CanUseTiles() { return __builtin_cpu_supports("x86-64-v4") != 0; }

void UseTiles(bool use) { Uses() = use; }

bool GoesByTiles(const cpu::ProductArgs& args, cpu::TypeIndex type) {
  const int64_t inputs = args.weight.inputs;
  // A row has its inputs and no more, so they must be whole pairs and, of quantised weights, groups.
  const bool whole = inputs % (args.weight.kind == cpu::kWeightBF16 ? 2 : cpu::kQuantGroup) == 0;
  return Uses() && type == cpu::kBF16 && args.weight.kind != cpu::kWeightF32 && args.rows >= kTileRows && whole;
}

int64_t TileItems(const cpu::ProductArgs& args) {
  return cpu::PanelCount(args.weight.outputs) * ((args.rows + kItemRows - 1) / kItemRows);
}

void TileProduct(const cpu::ProductArgs& args, int64_t item) {
  const int64_t panels = cpu::PanelCount(args.weight.outputs);
  const int64_t panel = item % panels;
  const int64_t begin = item / panels * kItemRows;
  const int64_t rows = std::min(kItemRows, args.rows - begin);
  static thread_local std::vector<float> scratch;
  float* sums = Scratch(&scratch, kItemRows * cpu::kPanel);
  at::native::cpublas::brgemm(rows, /*N=*/cpu::kPanel, /*K=*/args.weight.inputs, /*ld_a=*/args.x_stride,
                              /*ld_b=*/cpu::kPanel, /*ld_c=*/cpu::kPanel, /*add_C=*/false,
                              static_cast<const c10::BFloat16*>(args.x) + begin * args.x_stride,
                              PairsOf(args.weight, panel), sums);
  at::native::cpublas::brgemm_release();
  cpu::GetKernels().finish_product[cpu::kBF16](args, panel, begin, begin + rows, sums);
}

}  // namespace berth::ops
