#include "models/layers/encoder_decoder.h"

#include <ATen/ops/index_select.h>

#include <utility>

namespace berth {

std::vector<LayerCacheSpec> EncoderDecoderModel::cache_specs() const {
  std::vector<LayerCacheSpec> specs;
  for (const CrossDecoderLayer& layer : parts_.decoder_layers) {
    LayerCacheSpec& spec = specs.emplace_back(layer.attention->cache_spec(parts_.dtype));
    spec.cross = layer.cross->cache_spec(parts_.dtype).cross;
  }
  return specs;
}

ResidualStream EncoderDecoderModel::Embed(const Side& side, const at::Tensor& token_ids, const at::Tensor& positions,
                                          Execution& execution) const {
  at::Tensor x = at::index_select(side.embedding, 0, token_ids);
  if (parts_.embedding_scale != 1) x.mul_(parts_.embedding_scale);
  if (positions.defined()) x.add_(positions);
  if (side.embedding_norm.defined()) x = side.embedding_norm(x, execution);
  return ResidualStream(std::move(x), side.embedding.scalar_type());
}

template <typename Part>
void EncoderDecoderModel::Add(ResidualStream& stream, const Norm& norm, const Part& part, Execution& execution) const {
  if (parts_.norm_side == NormSide::kBefore) {
    stream.Add(part(stream.Normed(norm, execution)), execution);
    return;
  }
  stream.Add(part(stream.Sum(execution)), execution);
  stream.Replace(norm, execution);
}

void EncoderDecoderModel::Encode(const StepBatch& batch) const {
  Execution& execution = batch.execution();
  PositionEmbedding* const positions = parts_.positions.get();
  ResidualStream stream = Embed(parts_.encoder, batch.tables().encoder.token_ids,
                                positions != nullptr ? positions->Encoder(batch) : at::Tensor(), execution);
  for (const EncoderLayer& layer : parts_.encoder_layers) {
    const auto mlp = [&](const at::Tensor& y) { return (*layer.mlp)(y, execution); };
    Add(
        stream, layer.attention_norm, [&](const at::Tensor& y) { return layer.attention(y, batch); }, execution);
    Add(stream, layer.mlp_norm, mlp, execution);
  }
  const at::Tensor x = stream.Normed(parts_.encoder_norm, execution);
  for (const CrossDecoderLayer& layer : parts_.decoder_layers) layer.cross->Remember(x, batch);
}

at::Tensor EncoderDecoderModel::Forward(const StepBatch& batch) const {
  Execution& execution = batch.execution();
  if (!batch.encoder().empty()) Encode(batch);
  PositionEmbedding* const positions = parts_.positions.get();
  ResidualStream stream = Embed(parts_.decoder, batch.token_ids(),
                                positions != nullptr ? positions->Decoder(batch) : at::Tensor(), execution);
  for (const CrossDecoderLayer& layer : parts_.decoder_layers) {
    const auto mlp = [&](const at::Tensor& y) { return (*layer.mlp)(y, execution); };
    Add(
        stream, layer.attention_norm, [&](const at::Tensor& y) { return (*layer.attention)(y, batch); }, execution);
    Add(
        stream, layer.cross_norm, [&](const at::Tensor& y) { return (*layer.cross)(y, batch); }, execution);
    Add(stream, layer.mlp_norm, mlp, execution);
  }
  return parts_.head(stream.Sum(execution), batch);
}

}  // namespace berth
