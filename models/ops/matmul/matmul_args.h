// The arguments of the kernels of dense products y = x W^T + bias, for a matrix that was packed at load time.
//
// Contract: the order of an output's sum depends only on the kind of weight and the number of inputs. So a row has the
// same bits alone or among others, at any place, with any number of threads. (The last bits differ between instruction
// sets.) In floats, inputs are summed one after the other, in a chain for each kSumBlock of them, and the blocks' sums
// are added in order. For matrix tiles in bfloat16, cpu_amx.inc describes the order. Then the output's scale and bias
// are applied, and the result is rounded.
//
// The four kinds of weights:
// - float32 and bfloat16 weights are multiplied as they are; bfloat16 products are exact.
// - int8 has one scale per output.
// - int4 has one scale per output, and one width, a whole number, for each kWeightGroup of an output's inputs. A
//   weight is a number from -8 to 7, times the width, times the scale.
//
// With int8 and int4 the inputs are rounded to 8 bits too, with a scale for each row and kQuantGroup inputs, which
// depends on that row only. A group's sum is then an exact integer in any order of adding. The groups' sums, times the
// groups' scales, are added in a chain in float32.
#ifndef BERTH_MODELS_OPS_MATMUL_MATMUL_ARGS_H_
#define BERTH_MODELS_OPS_MATMUL_MATMUL_ARGS_H_

#include <stdint.h>

#include "models/kernels/cpu/panels.h"
#include "models/ops/elementwise/elementwise_args.h"

namespace berth::ops {

// Packs panels [begin, end).
struct PackMatrixArgs {
  DType dtype;
  int64_t inputs, outputs;
  const void* weight;  // [outputs, stride], by the entry's type
  int64_t stride;
  char* panels;   // out
  float* scales;  // out, of int8 and int4: [outputs]
};

// prepare_inputs first, for all rows, then matmul. Items of the first: MatMulLayout's row tiles; of the second:
// MatMulItems.
inline constexpr int64_t kChunkTiles = 16;  // row tiles of one item
struct MatMulArgs {
  PackedWeight weight;
  const void* x;      // [rows, x_stride]
  void* out;          // [rows, out_stride]: of the entry's type, or float32
  bool out_is_float;  // the results of the entry's type, widened
  const float* bias;  // [outputs] or null
  int64_t rows, x_stride, out_stride;
  char* prepared;  // MatMulLayout::prepared_bytes, aligned to 64
};

inline constexpr int64_t MatMulItems(int64_t outputs, int64_t tiles) {
  return PanelCount(outputs) * ((tiles + kChunkTiles - 1) / kChunkTiles);
}
struct PrepareInputsArgs {
  MatMulArgs matmul;
};

// How an instruction set lays out the inputs of a product.
struct MatMulLayout {
  int64_t row_tiles;
  int64_t prepared_bytes;
};

// CUDA's products.

// A matrix [outputs, inputs] of 8 bits, symmetric: an output's row times its scale.
struct Int8Weight {
  const int8_t* values;
  const float* scales;  // [outputs]
  int64_t outputs, inputs;
};

// out = x W^T + bias, of at most kInt8Rows rows; in bfloat16, of at most kInt8TileRows. x, bias and out are of one
// type; sums are in float32.
struct Int8MatMulArgs {
  Int8Weight weight;
  const void* x;     // [rows, x_stride]
  const void* bias;  // [outputs] or null
  void* out;         // [rows, out_stride]
  int64_t rows, x_stride, out_stride;
};
inline constexpr int64_t kInt8Rows = 16;
inline constexpr int64_t kInt8TileRows = 512;  // with more, expanding the weights costs less than the library saves

// out = activation(G x) * (U x). Both products get their bias, and are rounded to the entry's type, before the
// activation. G is the first half of the weight's rows, and U the second. There are at most kGatedRows rows; with a
// weight of 8 bits, kGatedInt8Rows.
struct GatedMatMulArgs {
  const void* weight;   // [2 * dim, inputs], of the entry's type or, with scales, of 8 bits
  const float* scales;  // [2 * dim] or null
  const void* bias;     // [2 * dim] or null
  const void* x;        // [rows, x_stride]
  void* out;            // [rows, dim]
  int64_t rows, x_stride, inputs, dim;
  Activation activation;  // not kClampedSwiglu
};
inline constexpr int64_t kGatedRows = 4;      // with more, the library's product may be faster
inline constexpr int64_t kGatedInt8Rows = 8;  // with 16, sums in bfloat16 spill out of registers

// Pairs of rows and experts in the order of their experts, and of the rows within an expert.
struct PairGroups {
  int* pairs;   // [num_pairs]
  int* x_rows;  // [num_pairs]: each one's row of x
  int* ends;    // [experts]: an expert's pairs end here, and the next one's begin
};
struct GroupPairsArgs {
  const int64_t* chosen;  // [num_pairs]: the expert
  int64_t experts, num_pairs, pairs_per_row;
  PairGroups groups;  // out
};

// out[p] = W x + bias of pair p, which is a row of x and one of the experts chosen for it. An expert's matrix is read
// once for several of its pairs, and not at all if it has none.
struct ExpertMatMulArgs {
  const int64_t* addresses;  // [experts, 2]: where each one's matrix [outputs, inputs] lies, and its scales
  bool is_int8;              // as Int8Weight; else of x's type, without scales
  const int64_t* chosen;     // [pairs]: the expert
  PairGroups groups;         // of nulls: each block looks for its expert's pairs, which is for few pairs
  const void* x;             // [pairs / pairs_per_row, x_stride]
  const void* bias;          // [experts, outputs] or null
  void* out;                 // [pairs, outputs]
  int64_t experts, pairs, pairs_per_row, outputs, inputs, x_stride;
};
inline constexpr int64_t kExpertRows = 4;  // that an expert's matrix is read for at once, if pairs are not grouped

// out: [outputs, inputs], the weights rounded to its type.
struct ExpandInt8Args {
  Int8Weight weight;
  void* out;
};

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_MATMUL_MATMUL_ARGS_H_
