// The causal convolution in ATen, one row at a time.
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "models/ops/causal_conv/causal_conv.h"
#include "models/ops/reference_views.h"

namespace berth::reference {

at::Tensor CausalConv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int layer, int state,
                      const StepBatch& batch, ops::ConvActivation activation) {
  const int64_t channels = x.size(1);
  const int64_t history = weight.size(0) - 1;
  const at::Tensor filter = weight.t().unsqueeze(1);  // [channels, 1, kernel]
  const at::Tensor outputs = at::empty({x.size(0), channels}, x.options());
  const auto convolve = [&](const ops::Row& row, int64_t /*length*/, const at::Tensor& view) {
    const at::Tensor past = row.start == 0 ? at::zeros({history, channels}, x.options()) : view.clone();
    const at::Tensor input = at::cat({past, RowSlice(x, row)}, 0);
    at::Tensor out = at::conv1d(input.to(at::kFloat).t().unsqueeze(0), filter, bias, at::IntArrayRef{1},
                                at::IntArrayRef{0}, at::IntArrayRef{1}, channels);
    if (activation == ops::ConvActivation::kSilu) out = at::silu(out);
    RowSlice(outputs, row).copy_(out.squeeze(0).t());
    view.copy_(input.narrow(0, row.num_tokens, history));
  };
  ForEachStateRow(batch, layer, state, {history, channels}, x.scalar_type(), convolve);
  return outputs;
}

}  // namespace berth::reference
