// The RG-LRU in ATen, one token at a time, as the paper writes it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sqrt.h>

#include <vector>

#include "models/ops/reference_views.h"
#include "models/ops/rg_lru/rg_lru.h"

namespace berth::reference {

at::Tensor RgLru(const at::Tensor& x, const at::Tensor& gates, const ops::RgLruWeights& weights, int layer, int state,
                 const StepBatch& batch) {
  const int64_t width = x.size(1);
  const int64_t block_width = gates.size(2) / 2;
  const at::Tensor products = gates.to(at::kFloat);
  const auto gate = [&](int64_t first, const at::Tensor& bias) {
    return at::sigmoid(products.narrow(2, first, block_width).reshape({x.size(0), width}) + bias);
  };
  const at::Tensor input = gate(0, weights.input_bias) * x.to(at::kFloat);
  const at::Tensor log_a = gate(block_width, weights.recurrence_bias) * weights.rate;
  const at::Tensor a = at::exp(log_a);
  const at::Tensor multiplier = at::sqrt(-at::expm1(2 * log_a));
  std::vector<at::Tensor> outputs(x.size(0));
  const auto scan = [&](const ops::Row& row, int64_t /*length*/, const at::Tensor& view) {
    at::Tensor h = view.clone();
    for (int64_t t = row.first_token; t < row.first_token + row.num_tokens; ++t) {
      const bool first = row.start + t - row.first_token == 0;
      h = first ? input[t] : a[t] * h + multiplier[t] * input[t];
      outputs[t] = h.reshape({1, width}).to(x.scalar_type());
    }
    view.copy_(h);
  };
  ForEachStateRow(batch, layer, state, {width}, at::kFloat, scan);
  return at::cat(outputs, 0);
}

}  // namespace berth::reference
