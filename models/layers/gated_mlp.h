// down(activation(gate(x)) * up(x)), gate and up as one product. Thread-compatible.
#ifndef BERTH_MODELS_LAYERS_GATED_MLP_H_
#define BERTH_MODELS_LAYERS_GATED_MLP_H_

#include <ATen/core/Tensor.h>

#include "models/kernels/ops.h"
#include "models/layers/linear.h"

namespace berth {

struct GatedMlp {
  Linear gate_up;  // 2 * intermediate outputs: gate, up
  Linear down;
  ops::Activation activation = ops::Activation::kSilu;

  // x: [tokens, hidden] -> [tokens, hidden].
  at::Tensor operator()(const at::Tensor& x) const { return down(ops::GatedActivation(gate_up(x), activation)); }
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_GATED_MLP_H_
