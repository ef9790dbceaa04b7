// The causal convolution in ATen, one row at a time.
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "models/ops/causal_conv/causal_conv.h"
#include "models/ops/reference_views.h"

namespace berth::reference {

at::Tensor CausalConv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int layer, int state,
                      const StepBatch& batch, ops::ConvActivation activation) {
  const int64_t channels = x.size(1);
  const int64_t history = weight.size(0) - 1;
  const at::Tensor filter = weight.t().unsqueeze(1);  // [channels, 1, kernel]
  std::vector<at::Tensor> outputs;
  for (size_t r = 0; r < batch.decoder().rows.size(); ++r) {
    const ops::Row& row = batch.decoder().rows[r];
    const at::Tensor view =
        StateView(batch, layer, state, static_cast<int64_t>(r), {history, channels}, x.scalar_type());
    const at::Tensor past = row.start == 0 ? at::zeros({history, channels}, x.options()) : view.clone();
    const at::Tensor input = at::cat({past, RowSlice(x, row)}, 0);
    at::Tensor out = at::conv1d(input.to(at::kFloat).t().unsqueeze(0), filter, bias, at::IntArrayRef{1},
                                at::IntArrayRef{0}, at::IntArrayRef{1}, channels);
    if (activation == ops::ConvActivation::kSilu) out = at::silu(out);
    outputs.push_back(out.squeeze(0).t().to(x.scalar_type()));
    view.copy_(input.narrow(0, row.num_tokens, history));
  }
  return at::cat(outputs, 0);
}

}  // namespace berth::reference
