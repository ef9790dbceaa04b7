#include "models/layers/decoder.h"

#include <ATen/ops/index_select.h>

#include <algorithm>
#include <utility>

#include "models/layers/residual_stream.h"

namespace berth {
namespace {

// Scored tokens whose logits are in memory together: 64 MiB for a vocabulary of 131,072. Fewer would read the head's
// weights more often.
constexpr int64_t kScoredTogether = 128;

// Pooled tokens whose hidden states are in memory together: 2 MiB for 4096 numbers each.
constexpr int64_t kPooledTogether = 128;

}  // namespace

at::Tensor Head::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const int64_t num_scored = batch.scored_logits() == nullptr ? 0 : batch.scored_tokens().size(0);
  for (int64_t first = 0; first < num_scored; first += kScoredTogether) {
    const int64_t count = std::min(kScoredTogether, num_scored - first);
    batch.scored_logits()->Take(Logits(x, batch.scored_tokens().narrow(0, first, count), batch.execution()), first);
  }
  const int64_t num_pooled = batch.pooled_states() == nullptr ? 0 : batch.pooled_tokens().size(0);
  for (int64_t first = 0; first < num_pooled; first += kPooledTogether) {
    const int64_t count = std::min(kPooledTogether, num_pooled - first);
    batch.pooled_states()->Take(States(x, batch.pooled_tokens().narrow(0, first, count), batch.execution()), first);
  }
  if (batch.sample_rows().empty()) return {};
  return Logits(x, batch.sample_tokens(), batch.execution());
}

at::Tensor Head::States(const at::Tensor& x, const at::Tensor& indices, Execution& execution) const {
  const at::Tensor rows = at::index_select(x, 0, indices).to(linear.type());
  return norm.defined() ? norm(rows, execution) : rows;
}

at::Tensor Head::Logits(const at::Tensor& x, const at::Tensor& indices, Execution& execution) const {
  at::Tensor logits = linear.Logits(States(x, indices, execution), execution);
  if (scale != 1 || softcap != 0) logits = logits.to(at::kFloat);
  if (scale != 1) logits.mul_(scale);
  if (softcap != 0) logits.mul_(1 / softcap).tanh_().mul_(softcap);  // in place, as a vocabulary may be large
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
  ResidualStream stream(std::move(x), parts_.embedding.scalar_type());
  const StepBatch* computed = &batch;
  for (size_t i = 0; i < parts_.layers.size(); ++i) {
    if (static_cast<int>(i) == batch.outputs().first_layer) {
      computed = batch.outputs().batch;
      if (computed == nullptr) return {};
      stream.Select(batch.outputs().tokens);
    }
    parts_.layers[i]->Forward(stream, *computed);
  }
  return parts_.head(stream.Sum(batch.execution()), *computed);
}

}  // namespace berth
