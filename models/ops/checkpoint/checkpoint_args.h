// The arguments of the kernel that quantises and expands states.
#ifndef BERTH_MODELS_OPS_CHECKPOINT_CHECKPOINT_ARGS_H_
#define BERTH_MODELS_OPS_CHECKPOINT_CHECKPOINT_ARGS_H_

#include <stdint.h>

#include "cache/dtype.h"

namespace berth::ops {

// CheckpointTensor of cache/spec.h, for kernels.
struct CheckpointState {
  int64_t state_offset, num_elements, dtype, offset, scale_offset, size_bytes;
};

// Does what QuantiseStates and ExpandStates of cache/checkpoint.h do, with the same bytes. (A NaN may have other bits.)
struct ConvertStatesArgs {
  char* states;
  char* checkpoint;
  const CheckpointState* tensors;  // [num_tensors]
  int64_t num_tensors;
  int64_t most_elements;  // of a tensor
  bool expands;           // the checkpoint; else quantises the states
};
inline constexpr int64_t kStateGroup = 32;  // numbers that share a scale

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_CHECKPOINT_CHECKPOINT_ARGS_H_
