#include "models/layers/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/ops/elementwise/elementwise.h"

namespace berth {
namespace {

at::Tensor Scaled(const at::Tensor& tensor, double scale) {
  return scale == 1 ? tensor : at::mul(tensor.to(at::kFloat), scale).to(tensor.scalar_type());
}

// The stored names of the tensors that a matrix is made of.
std::string JoinedName(const WeightLoader& weights, const std::vector<std::string>& names) {
  return absl::StrJoin(names, "+",
                       [&](std::string* out, const std::string& name) { out->append(weights.StoredName(name)); });
}

}  // namespace

Linear::Linear(const LinearWeights& weights) : weight_(Pack(weights)), bias_(MatMulBias(weights.bias)) {}

Linear Linear::WithAdapter(const LinearWeights& down, const LinearWeights& up) const {
  Linear adapted = *this;
  adapted.adapter_down_ = Pack(down);
  adapted.adapter_up_ = Pack(up);
  return adapted;
}

at::Tensor Linear::operator()(const at::Tensor& x, Execution& execution) const {
  const at::Tensor out = ops::MatMul(x, weight_, bias_, execution);
  if (!adapter_down_.defined()) return out;
  return out.add(ops::MatMul(ops::MatMul(x, adapter_down_, {}, execution), adapter_up_, {}, execution));
}

at::Tensor Linear::Gated(const at::Tensor& x, ops::Activation activation, Execution& execution) const {
  if (adapter_down_.defined()) return ops::GatedActivation((*this)(x, execution), activation, execution);
  return ops::GatedMatMul(x, weight_, bias_, activation, execution);
}

at::Tensor Linear::Logits(const at::Tensor& x, Execution& execution) const {
  if (adapter_down_.defined() || weight_.plain().defined()) return (*this)(x, execution);
  return ops::MatMul(x, weight_, bias_, execution, /*in_float32=*/true);
}

DType HeadStorage(DType matrices) { return IsQuantised(matrices) ? DType::kInt8 : matrices; }

at::Tensor MatMulBias(const at::Tensor& bias) {
  return bias.defined() && bias.is_cpu() ? bias.to(at::kFloat).contiguous() : bias;
}

LinearWeights MatrixOf(const WeightLoader& weights, const std::vector<std::string>& names, at::Tensor matrix) {
  return {.name = JoinedName(weights, names),
          .weight = std::move(matrix),
          .storage = weights.options().matrices,
          .packed = weights.options().packed};
}

ops::PackedMatrix Pack(const LinearWeights& weights) {
  return {weights.name, weights.weight, weights.storage, weights.packed};
}

std::vector<ops::PackedMatrix> PackStack(const WeightLoader& weights, const std::vector<std::string>& names,
                                         const at::Tensor& stack) {
  const WeightLoader::Options& options = weights.options();
  const std::string name = JoinedName(weights, names);
  std::vector<ops::PackedMatrix> matrices;
  for (int64_t i = 0; i < stack.size(0); ++i) {
    matrices.emplace_back(absl::StrCat(name, "[", i, "]"), stack.select(0, i), options.matrices, options.packed);
  }
  return matrices;
}

LinearWeights LoadLinear(WeightLoader& weights, int64_t in, const std::vector<LinearPart>& parts) {
  std::vector<std::string> names;
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> biases;
  const bool any_bias = std::any_of(parts.begin(), parts.end(), [](const LinearPart& p) { return p.has_bias; });
  for (const LinearPart& part : parts) {
    names.push_back(part.name + ".weight");
    matrices.push_back(Scaled(weights.GetMatrix(names.back(), {part.out, in}), part.input_scale * part.output_scale));
    if (part.has_bias) {
      biases.push_back(Scaled(weights.Get(part.name + ".bias", {part.out}), part.output_scale));
    } else if (any_bias) {
      biases.push_back(at::zeros({part.out}, matrices.back().options().device(weights.options().device)));
    }
  }
  LinearWeights linear = MatrixOf(weights, names, matrices.size() == 1 ? matrices[0] : at::cat(matrices, 0));
  if (any_bias) linear.bias = biases.size() == 1 ? biases[0] : at::cat(biases, 0);
  return linear;
}

void ScaleLinear(LinearWeights* linear, int64_t first, int64_t count, double input_scale, double output_scale) {
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
