#include "models/layers/attention.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <utility>
#include <vector>

#include "models/ops/paged_attention/paged_attention.h"

namespace berth {

Attention::Attention(const AttentionConfig& config, Weights weights) : config_(config), weights_(std::move(weights)) {}

LayerCacheSpec Attention::cache_spec(DType dtype) const {
  if (config_.kv_source_layer >= 0) return {};
  return {.kv = KvSpec{.kv_heads = config_.kv_heads,
                       .key_dim = config_.head_dim,
                       .value_dim = config_.head_dim,
                       .dtype = dtype,
                       .window = config_.window,
                       .chunk = config_.chunk}};
}

void Attention::NormQueriesAndKeys(Projected& p, Execution& execution) const {
  if (weights_.q_norm.defined()) weights_.q_norm.InPlace(p.q, execution);
  if (weights_.k_norm.defined() && p.k.defined()) weights_.k_norm.InPlace(p.k, execution);
}

void Attention::ScaleByPosition(at::Tensor& q, const StepBatch& batch) const {
  std::vector<float> factors;
  for (int64_t position : batch.decoder().positions) {
    const double steps = std::floor(static_cast<double>(position + 1) / config_.position_floor);
    factors.push_back(static_cast<float>(1 + config_.position_scale * std::log1p(steps)));
  }
  q.mul_(at::tensor(factors).to(q.options()).unsqueeze(1));
}

Attention::Projected Attention::Project(const at::Tensor& x, const StepBatch& batch) const {
  const int64_t q_columns = config_.q_heads * config_.head_dim;
  const int64_t kv_columns = config_.kv_source_layer >= 0 ? 0 : config_.kv_heads * config_.head_dim;
  const at::Tensor qkv = weights_.qkv(x, batch.execution());
  Projected p;
  p.q = qkv.narrow(1, 0, q_columns);
  if (kv_columns > 0) {
    p.k = qkv.narrow(1, q_columns, kv_columns);
    p.v = qkv.narrow(1, q_columns + kv_columns, kv_columns);
  }
  if (config_.output_gate) p.gate = qkv.narrow(1, q_columns + 2 * kv_columns, q_columns);
  if (!config_.norms_after_rotary) NormQueriesAndKeys(p, batch.execution());
  if (weights_.rotary != nullptr) {
    // q and k lie side by side: one call rotates the heads of both.
    at::Tensor qk = qkv.narrow(1, 0, q_columns + kv_columns);
    weights_.rotary->Apply(qk, batch);
  }
  if (config_.norms_after_rotary) NormQueriesAndKeys(p, batch.execution());
  if (weights_.v_norm.defined() && p.v.defined()) weights_.v_norm.InPlace(p.v, batch.execution());
  if (config_.position_scale != 0) ScaleByPosition(p.q, batch);
  return p;
}

at::Tensor Attention::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const Projected p = Project(x, batch);
  const int layer = config_.kv_source_layer >= 0 ? config_.kv_source_layer : config_.layer;
  if (p.k.defined()) ops::WriteKv(p.k, p.v, layer, batch);
  at::Tensor out = ops::Attention(p.q,
                                  {.layer = layer,
                                   .q_heads = config_.q_heads,
                                   .head_dim = config_.head_dim,
                                   .scale = config_.scale,
                                   .softcap = config_.softcap,
                                   .sinks = weights_.sinks},
                                  batch);
  if (p.gate.defined()) out.mul_(ops::Activate(p.gate, ops::Activation::kSigmoid, batch.execution()));
  return weights_.output(out, batch.execution());
}

}  // namespace berth
