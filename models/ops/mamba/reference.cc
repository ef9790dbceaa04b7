// The recurrences in ATen, one token at a time, as the papers write them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "models/ops/mamba/mamba.h"
#include "models/ops/reference_views.h"

namespace berth::reference {

at::Tensor MambaScan(const ops::MambaInputs& inputs, const at::Tensor& a, const at::Tensor& d,
                     const at::Tensor& dt_bias, int layer, int state, const StepBatch& batch) {
  const int64_t channels = inputs.x.size(1);
  const int64_t repeat = channels / inputs.b.size(1);
  std::vector<at::Tensor> outputs(inputs.x.size(0));
  const auto scan = [&](const ops::Row& row, int64_t /*length*/, const at::Tensor& view) {
    at::Tensor h = row.start == 0 ? at::zeros_like(view) : view.clone();
    const auto of_row = [&](const at::Tensor& t) { return RowSlice(t, row).to(at::kFloat); };
    const at::Tensor x = of_row(inputs.x);
    const at::Tensor step = at::softplus(of_row(inputs.dt) + dt_bias);
    const at::Tensor b =
        of_row(inputs.b).repeat_interleave(repeat, 1).transpose(1, 2);  // [tokens, state_dim, channels]
    const at::Tensor c = of_row(inputs.c).repeat_interleave(repeat, 1).transpose(1, 2);
    const at::Tensor gate = at::silu(of_row(inputs.gate));
    for (int64_t t = 0; t < row.num_tokens; ++t) {
      h = h * at::exp(step[t] * a) + b[t] * (step[t] * x[t]);
      const at::Tensor y = (h * c[t]).sum({0}) + x[t] * d;
      outputs[row.first_token + t] = (y * gate[t]).reshape({1, channels}).to(inputs.x.scalar_type());
    }
    view.copy_(h);
  };
  ForEachStateRow(batch, layer, state, a.sizes(), at::kFloat, scan);
  return at::cat(outputs, 0);
}

at::Tensor Mamba2Scan(const at::Tensor& xbc, const at::Tensor& dt, const at::Tensor& a, const at::Tensor& d,
                      const at::Tensor& dt_bias, const ops::Mamba2Shape& shape, const StepBatch& batch) {
  const int64_t inner = shape.heads * shape.head_dim;
  const int64_t repeat = shape.heads / shape.groups;
  std::vector<at::Tensor> outputs(xbc.size(0));
  const auto scan = [&](const ops::Row& row, int64_t length, const at::Tensor& view) {
    at::Tensor h = row.start == 0 ? at::zeros_like(view) : view.clone();
    const at::Tensor rows = RowSlice(xbc, row).to(at::kFloat);
    at::Tensor step = at::softplus(RowSlice(dt, row).to(at::kFloat) + dt_bias);
    const int64_t limited = std::clamp<int64_t>(length - row.start, 0, row.num_tokens);
    step.narrow(0, 0, limited).clamp_(shape.dt_min, shape.dt_max);
    for (int64_t t = 0; t < row.num_tokens; ++t) {
      const at::Tensor x = rows[t].narrow(0, 0, inner).view({shape.heads, shape.head_dim});
      const auto per_head = [&](int64_t first) {
        return rows[t]
            .narrow(0, first, shape.groups * shape.state_dim)
            .view({shape.groups, shape.state_dim})
            .repeat_interleave(repeat, 0);  // [heads, state_dim]
      };
      const at::Tensor b = per_head(inner);
      const at::Tensor c = per_head(inner + shape.groups * shape.state_dim);
      const at::Tensor decay = at::exp(step[t] * a).view({-1, 1, 1});
      h = h * decay + (x * step[t].unsqueeze(1)).unsqueeze(1) * b.unsqueeze(2);
      const at::Tensor y = at::matmul(c.unsqueeze(1), h).squeeze(1) + x * d.unsqueeze(1);
      outputs[row.first_token + t] = y.reshape({1, inner}).to(xbc.scalar_type());
    }
    view.copy_(h);
  };
  ForEachStateRow(batch, shape.layer, shape.state, {shape.heads, shape.state_dim, shape.head_dim}, at::kFloat, scan);
  return at::cat(outputs, 0);
}

}  // namespace berth::reference
