#include "models/layers/attention.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <utility>
#include <vector>

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

void Attention::ScaleByPosition(at::Tensor& q, const StepBatch& batch) const {
  std::vector<float> factors;
  for (int64_t position : batch.decoder().positions) {
    const double steps = std::floor(static_cast<double>(position + 1) / config_.position_floor);
    factors.push_back(static_cast<float>(1 + config_.position_scale * std::log1p(steps)));
  }
  q.mul_(at::tensor(factors).to(q.options()).unsqueeze(1));
}

ops::NewHeads Attention::HeadsOf(const at::Tensor& qkv, const StepBatch& batch) const {
  const auto weights = [](const Norm& norm) -> ops::HeadNormWeights {
    return {.weight = norm.weight, .eps = norm.eps};
  };
  return {.qkv = qkv,
          .q_heads = config_.q_heads,
          .kv_heads = config_.kv_source_layer >= 0 ? 0 : config_.kv_heads,
          .head_dim = config_.head_dim,
          .q_norm = weights(weights_.q_norm),
          .k_norm = weights(weights_.k_norm),
          .v_norm = weights(weights_.v_norm),
          .norms_after_rotary = config_.norms_after_rotary,
          .rotation = weights_.rotary != nullptr ? weights_.rotary->Of(batch) : ops::Rotation{}};
}

at::Tensor Attention::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const at::Tensor qkv = weights_.qkv(x, batch.execution());
  const ops::NewHeads heads = HeadsOf(qkv, batch);
  const int layer = config_.kv_source_layer >= 0 ? config_.kv_source_layer : config_.layer;
  ops::PrepareHeads(heads, layer, batch);
  const int64_t q_columns = config_.q_heads * config_.head_dim;
  at::Tensor q = qkv.narrow(1, 0, q_columns);
  if (config_.position_scale != 0) ScaleByPosition(q, batch);
  at::Tensor out = ops::Attention(q,
                                  {.layer = layer,
                                   .q_heads = config_.q_heads,
                                   .head_dim = config_.head_dim,
                                   .scale = config_.scale,
                                   .softcap = config_.softcap,
                                   .sinks = weights_.sinks},
                                  batch);
  if (config_.output_gate) {
    const at::Tensor gate = qkv.narrow(1, q_columns + 2 * heads.kv_heads * heads.head_dim, q_columns);
    out.mul_(ops::Activate(gate, ops::Activation::kSigmoid, batch.execution()));
  }
  return weights_.output(out, batch.execution());
}

}  // namespace berth
