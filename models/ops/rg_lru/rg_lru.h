// The real-gated linear recurrent unit (De et al., 2024, section 2.4). See models/ops/README.md for the rules of
// operations. Engine thread only.
#ifndef BERTH_MODELS_OPS_RG_LRU_RG_LRU_H_
#define BERTH_MODELS_OPS_RG_LRU_RG_LRU_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/step/step_batch.h"

namespace berth::ops {

struct RgLruWeights {
  at::Tensor input_bias, recurrence_bias;  // [width], float32
  at::Tensor rate;                         // [width], float32, negative: -8 softplus(Lambda)
};

// Runs the recurrence over the step's tokens, as RgLruArgs defines it. State `state` of the layer's states is [width],
// float32, where width is blocks * block_width.
// - x: [tokens, width].
// - gates: [tokens, blocks, 2 * block_width], the products of x with the input gate's matrices and with the recurrence
//   gate's, without their biases.
// Returns [tokens, width].
at::Tensor RgLru(const at::Tensor& x, const at::Tensor& gates, const RgLruWeights& weights, int layer, int state,
                 const StepBatch& batch);

}  // namespace berth::ops

namespace berth::reference {

// This has the contract above, in ATen operations, token by token, on any device.
at::Tensor RgLru(const at::Tensor& x, const at::Tensor& gates, const ops::RgLruWeights& weights, int layer, int state,
                 const StepBatch& batch);

}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_RG_LRU_RG_LRU_H_
