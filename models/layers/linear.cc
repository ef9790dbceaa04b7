#include "models/layers/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace berth {
namespace {

at::Tensor Scaled(const at::Tensor& tensor, double scale) {
  return scale == 1 ? tensor : at::mul(tensor.to(at::kFloat), scale).to(tensor.scalar_type());
}

}  // namespace

at::Tensor Linear::operator()(const at::Tensor& x) const {
  const at::Tensor out = at::linear(x, weight, bias);
  return adapter_down.defined() ? out.add(at::linear(at::linear(x, adapter_down), adapter_up)) : out;
}

Linear LoadLinear(WeightLoader& weights, int64_t in, const std::vector<LinearPart>& parts) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> biases;
  const bool any_bias = std::any_of(parts.begin(), parts.end(), [](const LinearPart& p) { return p.has_bias; });
  for (const LinearPart& part : parts) {
    matrices.push_back(
        Scaled(weights.Get(part.name + ".weight", {part.out, in}), part.input_scale * part.output_scale));
    if (part.has_bias) {
      biases.push_back(Scaled(weights.Get(part.name + ".bias", {part.out}), part.output_scale));
    } else if (any_bias) {
      biases.push_back(at::zeros({part.out}, matrices.back().options()));
    }
  }
  Linear linear;
  linear.weight = matrices.size() == 1 ? matrices[0] : at::cat(matrices, 0);
  if (any_bias) linear.bias = biases.size() == 1 ? biases[0] : at::cat(biases, 0);
  return linear;
}

void ScaleLinear(Linear* linear, int64_t first, int64_t count, double input_scale, double output_scale) {
  const auto scale = [&](at::Tensor* tensor, double factor) {
    if (!tensor->defined() || factor == 1) return;
    std::vector<at::Tensor> parts = at::split_with_sizes(*tensor, {first, count, tensor->size(0) - first - count});
    parts[1] = Scaled(parts[1], factor);
    *tensor = at::cat(parts);  // a copy: the weights may be a view of the file
  };
  scale(&linear->weight, input_scale * output_scale);
  scale(&linear->bias, output_scale);
}

}  // namespace berth
