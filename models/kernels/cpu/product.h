// Dense products y = x W^T + bias, for a weight that was packed once at load time. Part of kernels.h; see its rules.
//
// Contract: the sum of an output element runs in an order that depends on the weight's kind and its number of inputs
// alone: equal bits for a row alone, among others, wherever it stands, by however many threads. (Between instruction
// sets the last bits differ.) The order: inputs are summed one after the other, in a chain for each kSumBlock of them;
// the blocks' sums are added in order, then the output's scale and bias are applied, then the result is rounded.
// Of bfloat16 inputs and weights on a processor with matrix tiles product_amx.inc says the order.
//
// Of the four kinds, float32 and bfloat16 weights are multiplied as they are, products exact in bfloat16. int8 has one
// scale per output; int4 one per output and kQuantGroup inputs. Their inputs are rounded to 8 bits too, with a scale
// for each row and kQuantGroup inputs, which depends on the row alone; the integer products are then exact, and the
// groups' sums are added in float32.
#ifndef BERTH_MODELS_KERNELS_CPU_PRODUCT_H_
#define BERTH_MODELS_KERNELS_CPU_PRODUCT_H_

#include <stdint.h>

namespace berth::cpu {

enum WeightKind { kWeightF32, kWeightBF16, kWeightInt8, kWeightInt4 };

inline constexpr int64_t kPanel = 32;       // outputs of one panel
inline constexpr int64_t kSumBlock = 512;   // inputs of one chain of sums
inline constexpr int64_t kQuantGroup = 32;  // inputs of one scale

// A weight [outputs, inputs] as panels of kPanel outputs, of PanelBytes each, the last one filled up with zeros. Where
// a panel has 4 bytes for each of its outputs, they follow each other: first the step's outputs, then the next step.
//   float32:  a step is one input.
//   bfloat16: a step is a pair of inputs, the layout that dot products of pairs and tile instructions take.
//   int8:     a step is four inputs, each + 128, as unsigned bytes.
//   int4:     kQuantGroup inputs by kQuantGroup: a bfloat16 scale for each output, then 4 steps of eight inputs, each
//             + 8, of which the low halves of the bytes are the first four and the high halves the others.
// Missing inputs up to a whole kQuantGroup (of float32: none) are zeros.
struct PackedWeight {
  WeightKind kind;
  int64_t inputs, outputs;
  const char* panels;   // aligned to 64 bytes
  const float* scales;  // int8: [outputs]; else null
};

inline constexpr int64_t PanelCount(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

// Bytes of one panel.
inline constexpr int64_t PanelBytes(WeightKind kind, int64_t inputs) {
  const int64_t groups = (inputs + kQuantGroup - 1) / kQuantGroup;
  switch (kind) {
    case kWeightF32:
      return inputs * kPanel * 4;
    case kWeightBF16:
      return groups * kQuantGroup * kPanel * 2;
    case kWeightInt8:
      return groups * kQuantGroup * kPanel;
    default:
      return groups * (kQuantGroup / 2 + 2) * kPanel;
  }
}

// Packs panels [begin, end).
struct PackWeightArgs {
  WeightKind kind;
  int64_t inputs, outputs;
  const void* weight;  // [outputs, stride], by the entry's type
  int64_t stride;
  char* panels;   // out
  float* scales;  // out, of int8: [outputs]
};

// prepare_inputs first, for all rows, then dense_product. Items of the first: the rows' tiles, of which product_tiles
// says how many there are; of the second: ProductItems.
inline constexpr int64_t kChunkTiles = 16;  // row tiles of one item
struct ProductArgs {
  PackedWeight weight;
  const void* x;      // [rows, x_stride]
  void* out;          // [rows, out_stride]
  const float* bias;  // [outputs] or null
  int64_t rows, x_stride, out_stride;
  char* prepared;  // ProductInputBytes(), aligned to 64
};

inline constexpr int64_t ProductItems(int64_t outputs, int64_t tiles) {
  return PanelCount(outputs) * ((tiles + kChunkTiles - 1) / kChunkTiles);
}
inline constexpr int64_t ProductInputBytes(int64_t inputs, int64_t rows) {
  return rows * ((inputs + kQuantGroup - 1) / kQuantGroup * kQuantGroup) * 4;
}

}  // namespace berth::cpu

#endif  // BERTH_MODELS_KERNELS_CPU_PRODUCT_H_
