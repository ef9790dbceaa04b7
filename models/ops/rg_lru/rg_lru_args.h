// The arguments of the RG-LRU's kernels.
#ifndef BERTH_MODELS_OPS_RG_LRU_RG_LRU_ARGS_H_
#define BERTH_MODELS_OPS_RG_LRU_RG_LRU_ARGS_H_

#include <stdint.h>

#include "models/step/row.h"

namespace berth::ops {

// The real-gated linear recurrent unit (De et al., 2024, section 2.4), per channel:
//   i = sigmoid(input gate);  log a = rate * sigmoid(recurrence gate)
//   h = a h + sqrt(1 - a^2) i x, but h = i x at position 0;  y = h
// Items: rows * channel chunks of kRgLruChunk.
struct RgLruArgs {
  char* arena;
  const Row* rows;
  const int64_t* units;  // by row
  int64_t state_offset;  // [width], float32
  const void* x;         // [tokens, x_stride]
  // The gates' products before bias: [tokens, blocks, 2 * block_width], the input's, then the recurrence's.
  const void* gates;
  const float* input_bias;       // [width]
  const float* recurrence_bias;  // [width]
  const float* rate;             // [width], negative: -8 softplus(Lambda)
  void* out;                     // [tokens, width]
  int64_t x_stride, gate_block_stride, gate_token_stride;
  int64_t width, block_width;
};
inline constexpr int64_t kRgLruChunk = 64;  // channels of one block, at most

// Items of `rg_lru` in one row.
inline constexpr int64_t RgLruChunks(const RgLruArgs& args) {
  return args.width / args.block_width * ((args.block_width + kRgLruChunk - 1) / kRgLruChunk);
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_RG_LRU_RG_LRU_ARGS_H_
