// A dense layer, and how checkpoints' matrices become one. Constants that a model multiplies before or after a product
// are folded into the weights here, at load time, in float32. Thread-compatible.
#ifndef BERTH_MODELS_LAYERS_LINEAR_H_
#define BERTH_MODELS_LAYERS_LINEAR_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/weights/weight_loader.h"

namespace berth {

struct Linear {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out] or undefined
  // A low-rank addition to the matrix, up * down; both or neither.
  at::Tensor adapter_down;  // [rank, in]
  at::Tensor adapter_up;    // [out, rank]

  // x: [tokens, in] -> [tokens, out].
  at::Tensor operator()(const at::Tensor& x) const;
};

// One matrix of the checkpoint: `name`.weight [out, in] and, where has_bias, `name`.bias [out].
// Computes output_scale * (W (input_scale * x) + b).
struct LinearPart {
  std::string name;
  int64_t out = 0;
  bool has_bias = false;
  double input_scale = 1;
  double output_scale = 1;
};

// The parts side by side as one product: out is the sum of theirs. Errors stick to the loader.
Linear LoadLinear(WeightLoader& weights, int64_t in, const std::vector<LinearPart>& parts);

// Makes rows [first, first + count) of `linear` compute output_scale * (W (input_scale * x) + b).
void ScaleLinear(Linear* linear, int64_t first, int64_t count, double input_scale, double output_scale);

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_LINEAR_H_
