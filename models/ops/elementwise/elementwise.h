// The operations that treat each token alone: norms, activations, rotations, the residual's sum. See
// models/ops/README.md for the rules of operations. Engine thread only.
#ifndef BERTH_MODELS_OPS_ELEMENTWISE_ELEMENTWISE_H_
#define BERTH_MODELS_OPS_ELEMENTWISE_ELEMENTWISE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/ops/elementwise/elementwise_args.h"
#include "models/step/execution.h"

namespace berth::ops {

// x: [tokens, groups * dim], weight: [dim] shared by the groups. Returns x's shape and type.
// x / sqrt(mean(x^2) + eps) * weight, per group of `dim` columns.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, Execution& execution);
// Norms x rounded to `type`, which the result has.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType type,
                   Execution& execution);
// The layer norm: (x - mean) / sqrt(variance + eps) * weight + bias, per group of `dim` columns, of x rounded to
// `type`. bias: [dim], or undefined.
at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                     at::ScalarType type, Execution& execution);
// RmsNorm in place, on a slice of a fused product.
void RmsNormInPlace(at::Tensor& x, const at::Tensor& weight, double eps, Execution& execution);

// Mamba-2's output norm. x, gate: [tokens, dim], weight: [dim]; the mean is over dim / groups columns.
// gate_first: norm(x * silu(gate)) * weight, else norm(x) * weight * silu(gate).
at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        int64_t groups, bool gate_first, Execution& execution);

// stream + scale * x, both [tokens, dim]; the stream has x's type or is float32, and so is the result.
at::Tensor AddResidual(const at::Tensor& stream, const at::Tensor& x, Execution& execution, double scale = 1);

// A sum that AddResidual would compute. One kernel computes it and its norm.
struct PendingSum {
  const at::Tensor& stream;
  const at::Tensor& x;
  double scale;
};
struct SumAndNorm {
  at::Tensor sum;     // of the stream's type
  at::Tensor normed;  // the norm of the sum rounded to the type that was asked for
};
// On the CPU, the bits are those of AddResidual and of the norm after it. On CUDA, the sum is a fused multiply-add, and
// AddResidual uses ATen's addition.
SumAndNorm RmsNormOfSum(const PendingSum& pending, const at::Tensor& weight, double eps, at::ScalarType type,
                        Execution& execution);
SumAndNorm LayerNormOfSum(const PendingSum& pending, const at::Tensor& weight, const at::Tensor& bias, double eps,
                          at::ScalarType type, Execution& execution);

// gate_up: [tokens, 2 * dim] -> [tokens, dim]: activation(left half) * right half. `swiglu`: of kClampedSwiglu alone.
at::Tensor GatedActivation(const at::Tensor& gate_up, Activation activation, Execution& execution,
                           const SwigluConstants& swiglu = {});
// x: [tokens, columns] -> activation(x). REQUIRES: an activation of one argument. An element's bits depend only on the
// element and its column. ATen's functions do not promise that: they compute the last elements of a tensor by other
// code.
at::Tensor Activate(const at::Tensor& x, Activation activation, Execution& execution);

// The rotations of a step's tokens.
struct Rotation {
  at::Tensor cos, sin;  // [rows, rotary_dim / 2], float32
  at::Tensor rows;      // [tokens], int64: each token's row of both
};
// Rotates heads of x [tokens, heads * head_dim] in place.
void Rotary(at::Tensor& x, const Rotation& rotation, int64_t head_dim, Execution& execution);

}  // namespace berth::ops

namespace berth::reference {

// These have the contracts above, in ATen operations, on any device.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);
at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        int64_t groups, bool gate_first);
at::Tensor GatedActivation(const at::Tensor& gate_up, ops::Activation activation,
                           const ops::SwigluConstants& swiglu = {});
at::Tensor Activate(const at::Tensor& x, ops::Activation activation);
void Rotary(at::Tensor& x, const ops::Rotation& rotation, int64_t head_dim);

}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_ELEMENTWISE_ELEMENTWISE_H_
