// The layout of a matrix that is packed for products: panels of outputs, in float32, bfloat16, int8 or int4.
#ifndef BERTH_MODELS_KERNELS_CPU_PANELS_H_
#define BERTH_MODELS_KERNELS_CPU_PANELS_H_

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

}  // namespace berth::ops

#endif  // BERTH_MODELS_KERNELS_CPU_PANELS_H_
