// The norms of a model's layers: root-mean-square, or layer norm where the mean is subtracted. Thread-compatible.
#ifndef BERTH_MODELS_LAYERS_NORM_H_
#define BERTH_MODELS_LAYERS_NORM_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "models/checkpoint/weight_loader.h"
#include "models/ops/elementwise/elementwise.h"

namespace berth {

struct Norm {
  at::Tensor weight;  // [dim], float32; undefined: no norm
  at::Tensor bias;    // [dim], float32, of a centered norm; undefined: none
  double eps = 0;
  bool centered = false;  // a layer norm

  bool defined() const { return weight.defined(); }
  // x: [tokens, n * dim], each dim columns normed alone (n is 1 where centered). Returns x's shape and type.
  at::Tensor operator()(const at::Tensor& x, Execution& execution) const;
  // Norms x rounded to `type`, which the result has.
  at::Tensor operator()(const at::Tensor& x, at::ScalarType type, Execution& execution) const;
  // Adds, and norms the sum rounded to `type`.
  ops::SumAndNorm OfSum(const ops::PendingSum& pending, at::ScalarType type, Execution& execution) const;
  // Norms x in place. REQUIRES: not centered.
  void InPlace(at::Tensor& x, Execution& execution) const { ops::RmsNormInPlace(x, weight, eps, execution); }
};

// Loads a root-mean-square norm. Its weight becomes float32, and 1 is added to it if `adds_one`.
Norm LoadNorm(WeightLoader& weights, const std::string& name, int64_t dim, double eps, bool adds_one = false);

// Returns a norm whose weights are 1.
Norm UnitNorm(const WeightLoader& weights, int64_t dim, double eps);

// `name`.weight and, where has_bias, `name`.bias.
Norm LoadLayerNorm(WeightLoader& weights, const std::string& name, int64_t dim, double eps, bool has_bias);

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_NORM_H_
