#include "models/layers/decoder.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tanh.h>

namespace berth {

at::Tensor Head::operator()(const at::Tensor& x, const StepBatch& batch) const {
  if (batch.sample_rows().empty()) return {};
  const at::Tensor rows = at::index_select(x, 0, batch.sample_tokens()).to(linear.type());
  at::Tensor logits = linear.Logits(norm.defined() ? norm(rows, batch.execution()) : rows, batch.execution());
  if (scale != 1 || softcap != 0) logits = logits.to(at::kFloat);
  if (scale != 1) logits.mul_(scale);
  if (softcap != 0) logits = at::mul(at::tanh(at::mul(logits, 1 / softcap)), softcap);
  return logits;
}

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
  return parts_.head(x, batch);
}

}  // namespace berth
