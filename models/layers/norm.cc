#include "models/layers/norm.h"

#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>

namespace berth {

at::Tensor Norm::operator()(const at::Tensor& x, Execution& execution) const {
  return operator()(x, x.scalar_type(), execution);
}

at::Tensor Norm::operator()(const at::Tensor& x, at::ScalarType type, Execution& execution) const {
  return centered ? ops::LayerNorm(x, weight, bias, eps, type, execution)
                  : ops::RmsNorm(x, weight, eps, type, execution);
}

ops::SumAndNorm Norm::OfSum(const ops::PendingSum& pending, at::ScalarType type, Execution& execution) const {
  return centered ? ops::LayerNormOfSum(pending, weight, bias, eps, type, execution)
                  : ops::RmsNormOfSum(pending, weight, eps, type, execution);
}

Norm LoadNorm(WeightLoader& weights, const std::string& name, int64_t dim, double eps, bool adds_one) {
  const at::Tensor weight = weights.GetFloat32(name, {dim});
  return {.weight = adds_one ? at::add(weight, 1.0) : weight, .eps = eps};
}

Norm UnitNorm(const WeightLoader& weights, int64_t dim, double eps) {
  return {.weight = at::ones({dim}, at::TensorOptions(at::kFloat).device(weights.options().device)), .eps = eps};
}

Norm LoadLayerNorm(WeightLoader& weights, const std::string& name, int64_t dim, double eps, bool has_bias) {
  Norm norm = {.weight = weights.GetFloat32(name + ".weight", {dim}), .eps = eps, .centered = true};
  if (has_bias) norm.bias = weights.GetFloat32(name + ".bias", {dim});
  return norm;
}

}  // namespace berth
