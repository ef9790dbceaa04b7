// The short causal convolution in front of recurrences. See models/ops/README.md for the rules of operations. Engine
// thread only.
#ifndef BERTH_MODELS_OPS_CAUSAL_CONV_CAUSAL_CONV_H_
#define BERTH_MODELS_OPS_CAUSAL_CONV_CAUSAL_CONV_H_

#include <ATen/core/Tensor.h>

#include "models/ops/causal_conv/causal_conv_args.h"
#include "models/step/step_batch.h"

namespace berth::ops {

// Returns activation(depthwise causal convolution of x + bias) for x [tokens, channels], and updates the state. That is
// `state` of the layer's states, [kernel - 1, channels], in x's type. REQUIRES: weight is [kernel, channels], bias is
// [channels] or undefined.
at::Tensor CausalConv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int layer, int state,
                      const StepBatch& batch, ConvActivation activation = ConvActivation::kSilu);

}  // namespace berth::ops

namespace berth::reference {

// This has the contract above, in ATen operations, on any device.
at::Tensor CausalConv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int layer, int state,
                      const StepBatch& batch, ops::ConvActivation activation = ops::ConvActivation::kSilu);

}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_CAUSAL_CONV_CAUSAL_CONV_H_
