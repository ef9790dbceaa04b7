#include "models/ops/elementwise/elementwise.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "models/ops/backend.h"
#include "models/ops/parallel.h"

namespace berth::ops {
namespace {

// out: what args.out is.
void RunRmsNorm(const RmsNormArgs& args, const at::Tensor& out, Execution& execution) {
  if (BackendOf(out, execution) == Backend::kCuda) {
    CheckLaunched(RunOnCuda(&cuda::Kernels::rms_norm, TypeOf(out), args, LaunchParamsFor(out), execution));
    return;
  }
  RunOnCpu(&cpu::Kernels::rms_norm, TypeOf(out), args, out.size(0) * args.groups, args.dim * 4, execution);
}

RmsNormArgs PlainNorm(const at::Tensor& x, const at::Tensor& out, const at::Tensor& weight, double eps) {
  const int64_t dim = weight.size(0);
  return {.x = RowsOf(x),
          .x_is_float = x.scalar_type() == at::kFloat,
          .addend = nullptr,
          .sum = nullptr,
          .out = out.data_ptr(),
          .weight = weight.const_data_ptr<float>(),
          .bias = nullptr,
          .gate = nullptr,
          .x_stride = x.stride(0),
          .addend_stride = 0,
          .out_stride = out.stride(0),
          .gate_stride = 0,
          .groups = x.size(1) / dim,
          .dim = dim,
          .weight_per_group = false,
          .centered = false,
          .gate_first = false,
          .eps = static_cast<float>(eps),
          .scale = 0};
}

// Memory for the norm of x, rounded to `type`.
at::Tensor NormedLike(const at::Tensor& x, at::ScalarType type) {
  TORCH_CHECK(x.scalar_type() == type || x.scalar_type() == at::kFloat, "a norm rounds float32, not ", x.scalar_type());
  return at::empty({x.size(0), x.size(1)}, x.options().dtype(type));
}

void CheckSummands(const at::Tensor& stream, const at::Tensor& x) {
  TORCH_CHECK(
      stream.sizes() == x.sizes() && (stream.scalar_type() == at::kFloat || stream.scalar_type() == x.scalar_type()),
      "a stream of ", stream.sizes(), " ", stream.scalar_type(), " and ", x.sizes(), " ", x.scalar_type());
}

// As the functions of the header. centered: a layer norm, whose bias may be undefined.
SumAndNorm NormOfSum(const PendingSum& pending, const at::Tensor& weight, const at::Tensor& bias, double eps,
                     bool centered, at::ScalarType type, Execution& execution) {
  const auto& [stream, x, scale] = pending;
  CheckSummands(stream, x);
  SumAndNorm out = {.sum = at::empty({x.size(0), x.size(1)}, stream.options()), .normed = NormedLike(stream, type)};
  RmsNormArgs args = PlainNorm(stream, out.normed, weight, eps);
  args.addend = RowsOf(x);
  args.addend_stride = x.stride(0);
  args.sum = out.sum.data_ptr();
  args.scale = static_cast<float>(scale);
  args.bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  args.centered = centered;
  RunRmsNorm(args, out.normed, execution);
  return out;
}

at::Tensor RunActivation(const at::Tensor& x, const void* up, int64_t dim, Activation activation,
                         const SwigluConstants& swiglu, Execution& execution) {
  at::Tensor out = at::empty({x.size(0), dim}, x.options());
  const ActivationArgs args = {.x = RowsOf(x),
                               .up = up,
                               .out = out.data_ptr(),
                               .stride = x.stride(0),
                               .dim = dim,
                               .activation = activation,
                               .swiglu = swiglu};
  if (BackendOf(x, execution) == Backend::kCuda) {
    CheckLaunched(RunOnCuda(&cuda::Kernels::activation, TypeOf(x), args, LaunchParamsFor(x), execution));
    return out;
  }
  RunOnCpu(&cpu::Kernels::activation, TypeOf(x), args, x.size(0), dim * 16, execution);
  return out;
}

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, Execution& execution) {
  return RmsNorm(x, weight, eps, x.scalar_type(), execution);
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType type,
                   Execution& execution) {
  if (BackendOf(x, execution) == Backend::kReference) return reference::RmsNorm(x.to(type), weight, eps);
  at::Tensor out = NormedLike(x, type);
  RunRmsNorm(PlainNorm(x, out, weight, eps), out, execution);
  return out;
}

at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                     at::ScalarType type, Execution& execution) {
  if (BackendOf(x, execution) == Backend::kReference) return reference::LayerNorm(x.to(type), weight, bias, eps);
  at::Tensor out = NormedLike(x, type);
  RmsNormArgs args = PlainNorm(x, out, weight, eps);
  args.bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  args.centered = true;
  RunRmsNorm(args, out, execution);
  return out;
}

void RmsNormInPlace(at::Tensor& x, const at::Tensor& weight, double eps, Execution& execution) {
  if (BackendOf(x, execution) == Backend::kReference) {
    x.copy_(reference::RmsNorm(x, weight, eps));
    return;
  }
  RunRmsNorm(PlainNorm(x, x, weight, eps), x, execution);
}

at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        int64_t groups, bool gate_first, Execution& execution) {
  if (BackendOf(x, execution) == Backend::kReference)
    return reference::GatedRmsNorm(x, gate, weight, eps, groups, gate_first);
  at::Tensor out = at::empty({x.size(0), x.size(1)}, x.options());
  RmsNormArgs args = PlainNorm(x, out, weight, eps);
  args.groups = groups;
  args.dim = x.size(1) / groups;
  args.weight_per_group = true;
  args.gate = RowsOf(gate);
  args.gate_stride = gate.stride(0);
  args.gate_first = gate_first;
  RunRmsNorm(args, out, execution);
  return out;
}

at::Tensor AddResidual(const at::Tensor& stream, const at::Tensor& x, Execution& execution, double scale) {
  if (BackendOf(stream, execution) != Backend::kCpu) return at::add(stream, x, scale);
  CheckSummands(stream, x);
  at::Tensor out = at::empty({x.size(0), x.size(1)}, stream.options());
  const AddResidualArgs args = {.x = RowsOf(stream),
                                .x_is_float = stream.scalar_type() == at::kFloat,
                                .y = RowsOf(x),
                                .out = out.data_ptr(),
                                .x_stride = stream.stride(0),
                                .y_stride = x.stride(0),
                                .dim = x.size(1),
                                .scale = static_cast<float>(scale)};
  RunOnCpu(&cpu::Kernels::add_residual, TypeOf(x), args, x.size(0), args.dim * 4, execution);
  return out;
}

SumAndNorm RmsNormOfSum(const PendingSum& pending, const at::Tensor& weight, double eps, at::ScalarType type,
                        Execution& execution) {
  if (BackendOf(pending.stream, execution) != Backend::kReference && pending.x.scalar_type() == type) {
    return NormOfSum(pending, weight, /*bias=*/{}, eps, /*centered=*/false, type, execution);
  }
  const at::Tensor sum = AddResidual(pending.stream, pending.x, execution, pending.scale);
  return {.sum = sum, .normed = RmsNorm(sum, weight, eps, type, execution)};
}

SumAndNorm LayerNormOfSum(const PendingSum& pending, const at::Tensor& weight, const at::Tensor& bias, double eps,
                          at::ScalarType type, Execution& execution) {
  if (BackendOf(pending.stream, execution) != Backend::kReference && pending.x.scalar_type() == type) {
    return NormOfSum(pending, weight, bias, eps, /*centered=*/true, type, execution);
  }
  const at::Tensor sum = AddResidual(pending.stream, pending.x, execution, pending.scale);
  return {.sum = sum, .normed = LayerNorm(sum, weight, bias, eps, type, execution)};
}

at::Tensor GatedActivation(const at::Tensor& gate_up, Activation activation, Execution& execution,
                           const SwigluConstants& swiglu) {
  if (BackendOf(gate_up, execution) == Backend::kReference)
    return reference::GatedActivation(gate_up, activation, swiglu);
  const int64_t dim = gate_up.size(1) / 2;
  return RunActivation(gate_up, RowsOf(gate_up.narrow(1, dim, dim)), dim, activation, swiglu, execution);
}

at::Tensor Activate(const at::Tensor& x, Activation activation, Execution& execution) {
  TORCH_CHECK(activation != kClampedSwiglu, "this activation has two arguments");
  if (BackendOf(x, execution) == Backend::kReference) return reference::Activate(x, activation);
  return RunActivation(x, /*up=*/nullptr, x.size(1), activation, /*swiglu=*/{}, execution);
}

void Rotary(at::Tensor& x, const Rotation& rotation, int64_t head_dim, Execution& execution) {
  const Backend backend = BackendOf(x, execution);
  if (backend == Backend::kReference) return reference::Rotary(x, rotation, head_dim);
  CheckRows(x);
  const RotaryArgs args = {.x = x.data_ptr(),
                           .rows = rotation.rows.const_data_ptr<int64_t>(),
                           .cos = rotation.cos.const_data_ptr<float>(),
                           .sin = rotation.sin.const_data_ptr<float>(),
                           .stride = x.stride(0),
                           .heads = x.size(1) / head_dim,
                           .head_dim = head_dim,
                           .rotary_dim = rotation.cos.size(1) * 2};
  if (backend == Backend::kCuda) {
    CheckLaunched(RunOnCuda(&cuda::Kernels::rotary, TypeOf(x), args, LaunchParamsFor(x), execution));
    return;
  }
  RunOnCpu(&cpu::Kernels::rotary, TypeOf(x), args, x.size(0), x.size(1) * 4, execution);
}

}  // namespace berth::ops
