// The layout of a matrix that is packed for products: panels of outputs, in float32, bfloat16, int8 or int4.
#ifndef BERTH_MODELS_KERNELS_CPU_PANELS_H_
#define BERTH_MODELS_KERNELS_CPU_PANELS_H_

#include <stdint.h>

#include "cache/dtype.h"

namespace berth::ops {

inline constexpr int64_t kPanel = 32;        // outputs of one panel
inline constexpr int64_t kSumBlock = 512;    // inputs of one chain of sums; a product reads as many at once
inline constexpr int64_t kQuantGroup = 128;  // inputs of a row that share a scale
inline constexpr int64_t kWeightGroup = 32;  // inputs that share a width of int4
inline constexpr int64_t kPairBlock = 32;    // inputs of a matrix tile, in bfloat16
inline constexpr int64_t kByteBlock = 64;    // inputs of a matrix tile, in bytes

// A packed matrix [outputs, inputs]. Its outputs are cut into panels of kPanel = 32, of PanelBytes each; the last panel
// is filled up with zeros. Within a panel the bytes lie in the order in which a product reads them, step after step. A
// step holds a few inputs of all 32 outputs: 4 bytes for each output, 128 bytes together.
//
//      matrix [outputs, inputs]          panel 0                       panel 1
//               inputs ->                step 0    step 1              step 0
//         +------------------+           +---------+---------+----     +---------+----
//       o | panel 0: 32 rows |           | o0..o31 | o0..o31 | ...     |o32..o63 | ...
//       u +------------------+    ->     +---------+---------+----     +---------+----
//       t | panel 1: 32 rows |            128 bytes 128 bytes
//         +------------------+
//
// A step's 4 bytes of one output, by kind:
//   float32:  one input.
//   bfloat16: two inputs, the pair that dot products and tile instructions take.
//   int8:     four inputs, each + 128, as unsigned bytes.
//   int4:     eight inputs, each + 8. The low halves of the bytes are the first four, the high halves the others.
//
// int4 also has two widths for each output and kByteBlock = 64 inputs, signed bytes from -15 to 15, before their steps:
//
//       +---------------------------+---------------------------+---------------------------+----
//       | widths: o0 o0 .. o31 o31  | 4 steps: inputs 0 to 31,  | 4 steps: inputs 32 to 63, | next 64
//       |                           | times the first widths    | times the second widths   | inputs
//       +---------------------------+---------------------------+---------------------------+----
//         64 bytes                    512 bytes                   512 bytes
//
// Missing inputs up to a whole kPairBlock of bfloat16, and up to a whole kByteBlock of int8 and int4, are zeros.
//
// Why these numbers:
// - kPanel: 32 outputs are two registers of AVX-512 or two matrix tiles side by side. A step is two cache lines, so a
//   panel is read as one stream. With two registers of outputs, 12 rows (vectors.inc) fill 24 of the 32 registers with
//   sums.
// - kSumBlock: 512 inputs of a panel are 64 KiB in float32, which stay in the second cache while all tiles of rows use
//   them.
// - kQuantGroup: 128 inputs are enough for sums of integers to pay, and few enough for one scale to fit them.
struct PackedWeight {
  DType dtype;
  int64_t inputs, outputs;
  const char* panels;   // aligned to 64 bytes
  const float* scales;  // int8, int4: [outputs]; else null
};

inline constexpr int64_t PanelCount(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

// Bytes of one panel.
inline constexpr int64_t PanelBytes(DType dtype, int64_t inputs) {
  const int64_t pair_blocks = (inputs + kPairBlock - 1) / kPairBlock;
  const int64_t byte_blocks = (inputs + kByteBlock - 1) / kByteBlock;
  switch (dtype) {
    case DType::kFloat32:
      return inputs * kPanel * 4;
    case DType::kBFloat16:
      return pair_blocks * kPairBlock * kPanel * 2;
    case DType::kInt8:
      return byte_blocks * kByteBlock * kPanel;
    default:
      return byte_blocks * (kByteBlock / 2 + kByteBlock / kWeightGroup) * kPanel;
  }
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_KERNELS_CPU_PANELS_H_
