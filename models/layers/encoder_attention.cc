#include "models/layers/encoder_attention.h"

#include "models/ops/paged_attention/paged_attention.h"

namespace berth {
namespace {

KvSpec SpecOf(const ops::BidirectionalAttentionShape& shape, DType dtype) {
  return {.kv_heads = shape.q_heads, .key_dim = shape.head_dim, .value_dim = shape.head_dim, .dtype = dtype};
}

// Column block `index` of a fused product.
at::Tensor Columns(const at::Tensor& product, const ops::BidirectionalAttentionShape& shape, int64_t index) {
  const int64_t width = shape.q_heads * shape.head_dim;
  return product.narrow(1, index * width, width);
}

}  // namespace

at::Tensor EncoderSelfAttention::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const at::Tensor p = qkv(x, batch.execution());
  return output(ops::EncoderAttention(Columns(p, shape, 0), Columns(p, shape, 1), Columns(p, shape, 2), shape, batch),
                batch.execution());
}

LayerCacheSpec BiasedAttention::cache_spec(DType dtype) const { return {.kv = SpecOf(shape_, dtype)}; }

at::Tensor BiasedAttention::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const at::Tensor p = qkv_(x, batch.execution());
  ops::WriteKv(Columns(p, shape_, 1), Columns(p, shape_, 2), shape_.layer, batch);
  return output_(ops::Attention(Columns(p, shape_, 0),
                                {.layer = shape_.layer,
                                 .q_heads = shape_.q_heads,
                                 .head_dim = shape_.head_dim,
                                 .scale = shape_.scale,
                                 .distance_bias = shape_.distance_bias},
                                batch),
                 batch.execution());
}

LayerCacheSpec CrossAttention::cache_spec(DType dtype) const { return {.cross = SpecOf(shape_, dtype)}; }

void CrossAttention::Remember(const at::Tensor& encoded, const StepBatch& batch) const {
  const at::Tensor kv = weights_.kv(encoded, batch.execution());
  ops::WriteCross(Columns(kv, shape_, 0), Columns(kv, shape_, 1), shape_.layer, batch);
}

at::Tensor CrossAttention::operator()(const at::Tensor& x, const StepBatch& batch) const {
  return weights_.output(ops::CrossAttention(weights_.q(x, batch.execution()), shape_, batch), batch.execution());
}

}  // namespace berth
