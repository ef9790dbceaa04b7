// Dense products of many bfloat16 rows by the processor's tile instructions (AMX), through LibTorch's brgemm. Whole
// rows of a panel's outputs at once: what the panels hold is what brgemm takes; int8 and int4 are expanded on the way.
//
// A row's sums run in another order than dense_product's, and quantised weights meet inputs that are not rounded: with
// tiles, a product of bfloat16 rows is a little different alone and among many. float32 models never use them.
//
// To be called from the pool's threads.
#ifndef BERTH_MODELS_KERNELS_TILE_PRODUCT_H_
#define BERTH_MODELS_KERNELS_TILE_PRODUCT_H_

#include <cstdint>

#include "models/kernels/cpu/kernels.h"

namespace berth::ops {

// Fewer rows are bound by reading the weight, whatever multiplies them.
inline constexpr int64_t kTileRows = 16;

// Whether a product of rows of `type` is to go by tiles: on a machine that has them, or as UseTiles said.
bool GoesByTiles(const cpu::ProductArgs& args, cpu::TypeIndex type);
// For tests, which run tiles' products on machines without by what LibTorch has in their place. REQUIRES: the machine
// has AVX-512; no step is running.
void UseTiles(bool use);
// Whether LibTorch multiplies bfloat16 here as TileProduct asks for it.
bool CanUseTiles();

// Items of a product, and one of them: some rows of one panel.
int64_t TileItems(const cpu::ProductArgs& args);
void TileProduct(const cpu::ProductArgs& args, int64_t item);

}  // namespace berth::ops

#endif  // BERTH_MODELS_KERNELS_TILE_PRODUCT_H_
