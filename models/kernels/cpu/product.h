// Dense products y = x W^T + bias, for a weight that was packed once at load time. Part of kernels.h; see its rules.
//
// Contract: the sum of an output element runs in an order that depends on the weight's kind and its number of inputs
// alone: equal bits for a row alone, among others, wherever it stands, by however many threads. (Between instruction
// sets the last bits differ.) The order of floats: inputs are summed one after the other, in a chain for each kSumBlock
// of them, and the blocks' sums are added in order. (Of bfloat16 inputs and weights on a processor with matrix tiles
// product_amx.inc says it.) Then the output's scale and bias are applied, then the result is rounded.
//
// Of the four kinds, float32 and bfloat16 weights are multiplied as they are, products exact in bfloat16. int8 has one
// scale per output. int4 is int8 on coarser grids: each kWeightGroup inputs of an output have a whole number, their
// width, of which they are -8 to 7 times as much. Their inputs are rounded to 8 bits too, with a scale for each row and
// kQuantGroup inputs, which depends on the row alone. The sums of a group's products are then exact integers, however
// they are computed; in float32 the groups' sums, times the group's scale, are added in a chain.
#ifndef BERTH_MODELS_KERNELS_CPU_PRODUCT_H_
#define BERTH_MODELS_KERNELS_CPU_PRODUCT_H_

#include <stdint.h>

namespace berth::ops {

enum WeightKind { kWeightF32, kWeightBF16, kWeightInt8, kWeightInt4 };

inline constexpr int64_t kPanel = 32;        // outputs of one panel
inline constexpr int64_t kSumBlock = 512;    // inputs of one chain of sums, and of what is read at once
inline constexpr int64_t kQuantGroup = 128;  // inputs of a row's scale
inline constexpr int64_t kWeightGroup = 32;  // inputs of a width of int4
inline constexpr int64_t kPairBlock = 32;    // inputs that a matrix tile takes of pairs in bfloat16
inline constexpr int64_t kByteBlock = 64;    // and of bytes

// A weight [outputs, inputs] as panels of kPanel outputs, of PanelBytes each, the last one filled up with zeros. Where
// a panel has 4 bytes for each of its outputs, they follow each other: first the step's outputs, then the next step.
//   float32:  a step is one input.
//   bfloat16: a step is a pair of inputs, the layout that dot products of pairs and tile instructions take.
//   int8:     a step is four inputs, each + 128, as unsigned bytes.
//   int4:     kByteBlock inputs by kByteBlock: two widths for each output, signed bytes from -15 to 15; then steps of
//             eight inputs, each + 8, of which the low halves of the bytes are the first four and the high halves the
//             others.
// Missing inputs up to a whole kPairBlock of bfloat16 and kByteBlock of int8 and int4 are zeros.
struct PackedWeight {
  WeightKind kind;
  int64_t inputs, outputs;
  const char* panels;   // aligned to 64 bytes
  const float* scales;  // int8, int4: [outputs]; else null
};

inline constexpr bool IsQuantised(WeightKind kind) { return kind == kWeightInt8 || kind == kWeightInt4; }

inline constexpr int64_t PanelCount(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

// Bytes of one panel.
inline constexpr int64_t PanelBytes(WeightKind kind, int64_t inputs) {
  const int64_t pair_blocks = (inputs + kPairBlock - 1) / kPairBlock;
  const int64_t byte_blocks = (inputs + kByteBlock - 1) / kByteBlock;
  switch (kind) {
    case kWeightF32:
      return inputs * kPanel * 4;
    case kWeightBF16:
      return pair_blocks * kPairBlock * kPanel * 2;
    case kWeightInt8:
      return byte_blocks * kByteBlock * kPanel;
    default:
      return byte_blocks * (kByteBlock / 2 + kByteBlock / kWeightGroup) * kPanel;
  }
}

// Packs panels [begin, end).
struct PackWeightArgs {
  WeightKind kind;
  int64_t inputs, outputs;
  const void* weight;  // [outputs, stride], by the entry's type
  int64_t stride;
  char* panels;   // out
  float* scales;  // out, of int8 and int4: [outputs]
};

// prepare_inputs first, for all rows, then dense_product. Items of the first: the rows' tiles, of which product_tiles
// says how many there are; of the second: ProductItems.
inline constexpr int64_t kChunkTiles = 16;  // row tiles of one item
struct ProductArgs {
  PackedWeight weight;
  const void* x;      // [rows, x_stride]
  void* out;          // [rows, out_stride]: of the entry's type, or float32
  bool out_is_float;  // the results of the entry's type, widened
  const float* bias;  // [outputs] or null
  int64_t rows, x_stride, out_stride;
  char* prepared;  // ProductInputBytes(), aligned to 64
};

inline constexpr int64_t ProductItems(int64_t outputs, int64_t tiles) {
  return PanelCount(outputs) * ((tiles + kChunkTiles - 1) / kChunkTiles);
}
// Enough for each kind: 4 bytes for each input, of whole groups. Matrix tiles take at most half of that, and fill up
// the last tile to at most twice the rows.
inline constexpr int64_t ProductInputBytes(int64_t inputs, int64_t rows) {
  return rows * ((inputs + kQuantGroup - 1) / kQuantGroup * kQuantGroup) * 4;
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_KERNELS_CPU_PRODUCT_H_
