#include "models/layers/decoder.h"

#include <ATen/ops/add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tanh.h>

#include <utility>

namespace berth {

AttentionBlock::AttentionBlock(Attention attention, GatedMlp mlp, DType dtype)
    : attention(std::move(attention)), mlp(std::move(mlp)), dtype(dtype) {}

LayerCacheSpec AttentionBlock::cache_spec() const { return {.kv = attention.cache_spec(dtype)}; }

at::Tensor AttentionBlock::Forward(const at::Tensor& x, const StepBatch& batch) const {
  at::Tensor attended = attention(input_norm(x), batch);
  if (post_attention_norm.defined()) attended = post_attention_norm(attended);
  const at::Tensor middle = at::add(x, attended);
  at::Tensor fed = mlp(pre_mlp_norm(middle));
  if (post_mlp_norm.defined()) fed = post_mlp_norm(fed);
  return at::add(middle, fed);
}

DecoderModel::DecoderModel(Parts parts) : parts_(std::move(parts)) {}

std::vector<LayerCacheSpec> DecoderModel::cache_specs() const {
  std::vector<LayerCacheSpec> specs;
  for (const auto& layer : parts_.layers) specs.push_back(layer->cache_spec());
  return specs;
}

at::Tensor DecoderModel::Forward(const StepBatch& batch) const {
  at::Tensor x = at::index_select(parts_.embedding, 0, batch.token_ids());
  if (parts_.embedding_scale != 1) x.mul_(parts_.embedding_scale);
  if (parts_.float32_residual) x = x.to(at::kFloat);
  for (const auto& layer : parts_.layers) x = layer->Forward(x, batch);
  if (batch.sample_rows().empty()) return {};
  x = at::index_select(x, 0, batch.sample_tokens()).to(parts_.head.weight.scalar_type());
  at::Tensor logits = parts_.head(parts_.final_norm(x)).to(at::kFloat);
  if (parts_.logit_softcap != 0) {
    logits = at::mul(at::tanh(at::mul(logits, 1 / parts_.logit_softcap)), parts_.logit_softcap);
  }
  return logits;
}

}  // namespace berth
