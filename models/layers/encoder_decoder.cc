#include "models/layers/encoder_decoder.h"

#include <ATen/ops/index_select.h>

#include "models/ops/elementwise/elementwise.h"

namespace berth {

std::vector<LayerCacheSpec> EncoderDecoderModel::cache_specs() const {
  std::vector<LayerCacheSpec> specs;
  for (const CrossDecoderLayer& layer : parts_.decoder_layers) {
    LayerCacheSpec& spec = specs.emplace_back(layer.attention->cache_spec(parts_.dtype));
    spec.cross = layer.cross->cache_spec(parts_.dtype).cross;
  }
  return specs;
}

at::Tensor EncoderDecoderModel::Embed(const Side& side, const at::Tensor& token_ids,
                                      const at::Tensor& positions) const {
  at::Tensor x = at::index_select(side.embedding, 0, token_ids);
  if (parts_.embedding_scale != 1) x.mul_(parts_.embedding_scale);
  if (positions.defined()) x.add_(positions);
  return side.embedding_norm.defined() ? side.embedding_norm(x) : x;
}

template <typename Part>
at::Tensor EncoderDecoderModel::Add(const at::Tensor& x, const Norm& norm, const Part& part) const {
  if (parts_.norm_side == NormSide::kBefore) return ops::AddResidual(x, part(norm(x)));
  return norm(ops::AddResidual(x, part(x)));
}

void EncoderDecoderModel::Encode(const StepBatch& batch) const {
  PositionEmbedding* const positions = parts_.positions.get();
  at::Tensor x =
      Embed(parts_.encoder, batch.encoder().token_ids, positions != nullptr ? positions->Encoder(batch) : at::Tensor());
  for (const EncoderLayer& layer : parts_.encoder_layers) {
    x = Add(x, layer.attention_norm, [&](const at::Tensor& y) { return layer.attention(y, batch); });
    x = Add(x, layer.mlp_norm, *layer.mlp);
  }
  if (parts_.encoder_norm.defined()) x = parts_.encoder_norm(x);
  for (const CrossDecoderLayer& layer : parts_.decoder_layers) layer.cross->Remember(x, batch);
}

at::Tensor EncoderDecoderModel::Forward(const StepBatch& batch) const {
  if (!batch.encoder().empty()) Encode(batch);
  PositionEmbedding* const positions = parts_.positions.get();
  at::Tensor x =
      Embed(parts_.decoder, batch.token_ids(), positions != nullptr ? positions->Decoder(batch) : at::Tensor());
  for (const CrossDecoderLayer& layer : parts_.decoder_layers) {
    x = Add(x, layer.attention_norm, [&](const at::Tensor& y) { return (*layer.attention)(y, batch); });
    x = Add(x, layer.cross_norm, [&](const at::Tensor& y) { return (*layer.cross)(y, batch); });
    x = Add(x, layer.mlp_norm, *layer.mlp);
  }
  return parts_.head(x, batch);
}

}  // namespace berth
