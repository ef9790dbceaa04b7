#include "models/layers/attention.h"

#include <utility>

namespace berth {

Attention::Attention(const AttentionConfig& config, Weights weights) : config_(config), weights_(std::move(weights)) {}

KvSpec Attention::cache_spec(DType dtype) const {
  return {.kv_heads = config_.kv_heads,
          .key_dim = config_.head_dim,
          .value_dim = config_.head_dim,
          .dtype = dtype,
          .window = config_.window};
}

at::Tensor Attention::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const int64_t q_columns = config_.q_heads * config_.head_dim;
  const int64_t kv_columns = config_.kv_heads * config_.head_dim;
  const at::Tensor qkv = weights_.qkv(x);
  at::Tensor q = qkv.narrow(1, 0, q_columns);
  at::Tensor k = qkv.narrow(1, q_columns, kv_columns);
  const at::Tensor v = qkv.narrow(1, q_columns + kv_columns, kv_columns);
  if (weights_.q_norm.defined()) {
    ops::RmsNormInPlace(q, weights_.q_norm.weight, weights_.q_norm.eps);
    ops::RmsNormInPlace(k, weights_.k_norm.weight, weights_.k_norm.eps);
  }
  if (weights_.rotary != nullptr) {
    // q and k lie side by side: one call rotates the heads of both.
    at::Tensor qk = qkv.narrow(1, 0, q_columns + kv_columns);
    weights_.rotary->Apply(qk, batch);
  }
  ops::WriteKv(k, v, config_.layer, batch);
  return weights_.output(ops::Attention(q,
                                        {.layer = config_.layer,
                                         .q_heads = config_.q_heads,
                                         .head_dim = config_.head_dim,
                                         .scale = config_.scale,
                                         .softcap = config_.softcap},
                                        batch));
}

}  // namespace berth
