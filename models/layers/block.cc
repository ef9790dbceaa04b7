#include "models/layers/block.h"

namespace berth {

LayerCacheSpec Block::cache_spec() const { return mixer != nullptr ? mixer->cache_spec(dtype) : LayerCacheSpec{}; }

void Block::Forward(ResidualStream& stream, const StepBatch& batch) const {
  Execution& execution = batch.execution();
  if (mixer != nullptr) {
    at::Tensor mixed = (*mixer)(stream.Normed(input_norm, execution), batch);
    if (post_mixer_norm.defined()) mixed = post_mixer_norm(mixed, execution);
    stream.Add(std::move(mixed), execution, residual_scale);
  }
  if (mlp != nullptr) {
    at::Tensor fed = (*mlp)(stream.Normed(pre_mlp_norm, execution), execution);
    if (post_mlp_norm.defined()) fed = post_mlp_norm(fed, execution);
    stream.Add(std::move(fed), execution, residual_scale);
  }
}

void ParallelBlock::Forward(ResidualStream& stream, const StepBatch& batch) const {
  Execution& execution = batch.execution();
  const at::Tensor normed = stream.Normed(input_norm, execution);
  stream.Add((*mixer)(normed, batch), execution);
  stream.Add((*mlp)(normed, execution), execution);
}

LayerCacheSpec MixerPair::cache_spec(DType dtype) const {
  LayerCacheSpec spec = first_->cache_spec(dtype);
  LayerCacheSpec second = second_->cache_spec(dtype);
  if (second.kv.has_value()) spec.kv = second.kv;
  spec.states.insert(spec.states.end(), second.states.begin(), second.states.end());
  return spec;
}

at::Tensor MixerPair::operator()(const at::Tensor& x, const StepBatch& batch) const {
  return (*first_)(x, batch).add_((*second_)(x, batch));
}

}  // namespace berth
