// The elementwise operations in ATen.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/square.h>
#include <c10/util/Exception.h>

#include "models/ops/elementwise/elementwise.h"

namespace berth::reference {

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor grouped = x.to(at::kFloat).reshape({x.size(0), -1, weight.size(0)});
  const at::Tensor inverse = at::rsqrt(grouped.square().mean({-1}, /*keepdim=*/true) + eps);
  return (grouped * inverse * weight).reshape({x.size(0), x.size(1)}).to(x.scalar_type());
}

// In float32: ATen's own code for CUDA takes no weights of another type than x's.
at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const at::Tensor grouped = x.to(at::kFloat).reshape({x.size(0), -1, weight.size(0)});
  const at::Tensor normed = at::layer_norm(grouped, {weight.size(0)}, weight, bias, eps);
  return normed.reshape({x.size(0), x.size(1)}).to(x.scalar_type());
}

at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        int64_t groups, bool gate_first) {
  const at::Tensor factor = at::silu(gate.to(at::kFloat));
  const at::Tensor input = gate_first ? x.to(at::kFloat) * factor : x.to(at::kFloat);
  const at::Tensor grouped = input.reshape({x.size(0), groups, -1});
  const at::Tensor inverse = at::rsqrt(grouped.square().mean({-1}, /*keepdim=*/true) + eps);
  const at::Tensor normed = (grouped * inverse).reshape({x.size(0), x.size(1)}) * weight;
  return (gate_first ? normed : normed * factor).to(x.scalar_type());
}

at::Tensor Activate(const at::Tensor& x, ops::Activation activation) {
  switch (activation) {
    case ops::Activation::kSilu:
      return at::silu(x);
    case ops::Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case ops::Activation::kGelu:
      return at::gelu(x, "none");
    case ops::Activation::kSigmoid:
      return at::sigmoid(x);
    case ops::Activation::kRelu:
      return at::relu(x);
    case ops::Activation::kReluSquared:
      return at::square(at::relu(x));
    case ops::Activation::kClampedSwiglu:
      break;
  }
  TORCH_CHECK(false, "activation ", static_cast<int>(activation), " has two arguments");
}

at::Tensor GatedActivation(const at::Tensor& gate_up, ops::Activation activation, const ops::SwigluConstants& swiglu) {
  const int64_t dim = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, dim).to(at::kFloat);
  const at::Tensor up = gate_up.narrow(1, dim, dim).to(at::kFloat);
  if (activation == ops::Activation::kClampedSwiglu) {
    const at::Tensor g = gate.clamp_max(swiglu.limit);
    const at::Tensor u = up.clamp(-swiglu.limit, swiglu.limit);
    return ((u + 1) * g * at::sigmoid(g * swiglu.alpha)).to(gate_up.scalar_type());
  }
  return (reference::Activate(gate, activation) * up).to(gate_up.scalar_type());
}

void Rotary(at::Tensor& x, const ops::Rotation& rotation, int64_t head_dim) {
  const int64_t half = rotation.cos.size(1);
  const at::Tensor c = rotation.cos.index_select(0, rotation.rows).unsqueeze(1);
  const at::Tensor s = rotation.sin.index_select(0, rotation.rows).unsqueeze(1);
  const at::Tensor heads = x.unflatten(1, {-1, head_dim});  // a view of x
  const at::Tensor x1 = heads.narrow(2, 0, half).to(at::kFloat);
  const at::Tensor x2 = heads.narrow(2, half, half).to(at::kFloat);
  const at::Tensor rotated = at::cat({x1 * c - x2 * s, x2 * c + x1 * s}, 2);
  heads.narrow(2, 0, 2 * half).copy_(rotated);
}

}  // namespace berth::reference
