// The arguments of the kernels that treat each token alone: norms, activations, rotations, the residual's sum.
#ifndef BERTH_MODELS_OPS_ELEMENTWISE_ELEMENTWISE_ARGS_H_
#define BERTH_MODELS_OPS_ELEMENTWISE_ELEMENTWISE_ARGS_H_

#include <stdint.h>

namespace berth::ops {

// kClampedSwiglu is gpt_oss's: (up + 1) * gate * sigmoid(alpha * gate), with a gate of at most `limit` and an up within
// [-limit, limit].
enum Activation { kSilu, kGeluTanh, kGelu, kSigmoid, kRelu, kReluSquared, kClampedSwiglu };

// The constants of kClampedSwiglu; as gpt_oss was trained.
struct SwigluConstants {
  float alpha = 1.702f;
  float limit = 7.0f;
};

// out[i] = x[i] / rms(x[i]) * weight + bias, per group of `dim` columns. If centered, x[i] is less its mean: a layer
// norm. With an addend, x[i] is x[i] + scale * addend[i]. Items: tokens * groups.
struct RmsNormArgs {
  const void* x;        // [tokens, x_stride]; the groups lie side by side from column 0
  bool x_is_float;      // whatever the entry's type is, to which it is rounded first
  const void* addend;   // [tokens, addend_stride], of the entry's type, or null
  void* sum;            // with an addend: [tokens, groups * dim], the sum rounded to x's type, which is normed
  void* out;            // [tokens, out_stride]; may be x
  const float* weight;  // [dim], or [groups * dim] when weight_per_group
  const float* bias;    // of the weight's shape, or null
  const void* gate;     // [tokens, gate_stride] or null: multiplies by silu(gate)
  int64_t x_stride, addend_stride, out_stride, gate_stride;
  int64_t groups, dim;
  bool weight_per_group;
  bool centered;    // subtracts the mean first
  bool gate_first;  // gate before the norm, else after
  float eps;
  float scale;  // of the addend
};

// out = x + scale * y. Items: tokens.
struct AddResidualArgs {
  const void* x;    // [tokens, x_stride]
  bool x_is_float;  // and so is out, whatever the entry's type is
  const void* y;    // [tokens, y_stride]
  void* out;        // [tokens, dim]
  int64_t x_stride, y_stride, dim;
  float scale;
};

// out = activation(x), times `up` where that is given. Items: tokens.
struct ActivationArgs {
  const void* x;   // [tokens, stride]
  const void* up;  // [tokens, stride], or null; kClampedSwiglu needs it
  void* out;       // [tokens, dim]
  int64_t stride, dim;
  Activation activation;
  SwigluConstants swiglu;
};

// Rotates `heads` heads in place, halves paired: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin). Items: tokens.
struct RotaryArgs {
  void* x;              // [tokens, stride], heads from column 0
  const int64_t* rows;  // [tokens]: each one's row of cos and sin
  const float* cos;     // [rows, rotary_dim / 2]
  const float* sin;
  int64_t stride, heads, head_dim, rotary_dim;
};

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_ELEMENTWISE_ELEMENTWISE_ARGS_H_
