// The arguments of the causal convolution's kernels.
#ifndef BERTH_MODELS_OPS_CAUSAL_CONV_CAUSAL_CONV_ARGS_H_
#define BERTH_MODELS_OPS_CAUSAL_CONV_CAUSAL_CONV_ARGS_H_

#include <stdint.h>

#include "models/step/row.h"

namespace berth::ops {

enum class ConvActivation { kNone, kSilu };

// Depthwise causal convolution, then the activation. The state holds the last kernel - 1 inputs, oldest first.
// Items: rows * channel chunks of kConvChunk.
struct ConvArgs {
  char* arena;
  const Row* rows;
  const int64_t* units;  // by row: byte offset of the state unit
  int64_t state_offset;  // of this layer's state inside the unit: [kernel - 1, channels]
  const void* x;         // [tokens, x_stride]
  void* out;             // [tokens, channels]
  const float* weight;   // [kernel, channels]
  const float* bias;     // [channels] or null
  int64_t x_stride, channels, kernel;
  ConvActivation activation;
};
inline constexpr int64_t kConvChunk = 256;

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_CAUSAL_CONV_CAUSAL_CONV_ARGS_H_
