// The layout of a matrix that is packed for products: panels of outputs, in float32, bfloat16, int8 or int4.
#ifndef BERTH_MODELS_KERNELS_CPU_PANELS_H_
#define BERTH_MODELS_KERNELS_CPU_PANELS_H_

#include <stdint.h>

namespace berth::ops {

// Index of a type of activations in the tables.
enum TypeIndex { kF32 = 0, kBF16 = 1 };

enum WeightKind { kWeightF32, kWeightBF16, kWeightInt8, kWeightInt4 };

inline constexpr int64_t kPanel = 32;        // outputs of one panel
inline constexpr int64_t kSumBlock = 512;    // inputs of one chain of sums, and of what is read at once
inline constexpr int64_t kQuantGroup = 128;  // inputs of a row's scale
inline constexpr int64_t kWeightGroup = 32;  // inputs of a width of int4
inline constexpr int64_t kPairBlock = 32;    // inputs that a matrix tile takes of pairs in bfloat16
inline constexpr int64_t kByteBlock = 64;    // and of bytes

// The layout of a packed matrix. Outputs are cut into panels of kPanel = 32. Within a panel the bytes lie in the order
// in which a product reads them: for each step of inputs, all 32 outputs side by side.
//
//   matrix [outputs, inputs]            panel 0                      panel 1
//        inputs ->                      step 0    step 1    ...      step 0 ...
//      +-----------------+              +---------+---------+---     +---------+---
//   o  | panel 0: 32 rows|     ->       | o0..o31 | o0..o31 | ..     | o32..   | ..
//   u  +-----------------+              +---------+---------+---     +---------+---
//   t  | panel 1: 32 rows|              a step: 4 bytes of each output, 128 bytes: 1 float32, 2 bfloat16, 4 int8, 8
//   int4
//      +-----------------+
//
// Why these numbers: 32 outputs are two registers of AVX-512 or two matrix tiles side by side, and a step of 128 bytes
// is two cache lines, so a panel is read as one stream. With two registers of outputs, 12 rows (vectors.inc) fill 24 of
// the 32 registers with sums. kSumBlock = 512 inputs of a panel in float32 are 64 KiB: what stays in the second cache
// while all tiles of rows use it. kQuantGroup = 128 is long enough for integer sums to pay, and short enough for one
// scale to fit its inputs.
//
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

}  // namespace berth::ops

#endif  // BERTH_MODELS_KERNELS_CPU_PANELS_H_
