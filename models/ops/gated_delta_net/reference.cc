// The gated delta net in ATen, one token at a time, as the paper writes it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <vector>

#include "models/ops/gated_delta_net/gated_delta_net.h"
#include "models/ops/reference_views.h"

namespace berth::reference {
namespace {

at::Tensor Normalize(const at::Tensor& x, double eps) {
  return x * at::rsqrt(x.square().sum({-1}, /*keepdim=*/true) + eps);
}

}  // namespace

at::Tensor GatedDeltaNet(const at::Tensor& qkv, const at::Tensor& a, const at::Tensor& b, const at::Tensor& rate,
                         const at::Tensor& dt_bias, const ops::DeltaNetShape& shape, const StepBatch& batch) {
  const int64_t keys = shape.k_heads * shape.key_dim;
  const int64_t values = shape.v_heads * shape.value_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(shape.key_dim));
  std::vector<at::Tensor> outputs(qkv.size(0));
  const auto scan = [&](const ops::Row& row, int64_t /*length*/, const at::Tensor& view) {
    at::Tensor s = row.start == 0 ? at::zeros_like(view) : view.clone();
    const at::Tensor rows = RowSlice(qkv, row).to(at::kFloat);
    const auto heads = [&](int64_t first) {  // [tokens, v_heads, key_dim]
      return Normalize(rows.narrow(1, first, keys).unflatten(1, {shape.k_heads, shape.key_dim}), shape.norm_eps)
          .repeat_interleave(shape.v_heads / shape.k_heads, 1);
    };
    const at::Tensor q = heads(0) * scale;
    const at::Tensor k = heads(keys);
    const at::Tensor v = rows.narrow(1, 2 * keys, values).unflatten(1, {shape.v_heads, shape.value_dim});
    const at::Tensor decay = at::exp(rate * at::softplus(RowSlice(a, row).to(at::kFloat) + dt_bias));
    const at::Tensor beta = at::sigmoid(RowSlice(b, row).to(at::kFloat)) * shape.beta_scale;
    for (int64_t t = 0; t < row.num_tokens; ++t) {
      s = s * decay[t].view({-1, 1, 1});
      const at::Tensor read = (s * k[t].unsqueeze(2)).sum({1});  // [v_heads, value_dim]
      const at::Tensor d = (v[t] - read) * beta[t].unsqueeze(1);
      s = s + k[t].unsqueeze(2) * d.unsqueeze(1);
      const at::Tensor y = (s * q[t].unsqueeze(2)).sum({1});
      outputs[row.first_token + t] = y.reshape({1, values}).to(qkv.scalar_type());
    }
    view.copy_(s);
  };
  ForEachStateRow(batch, shape.layer, shape.state, {shape.v_heads, shape.key_dim, shape.value_dim}, at::kFloat, scan);
  return at::cat(outputs, 0);
}

}  // namespace berth::reference
