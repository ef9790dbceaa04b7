#include "models/layers/block.h"

#include <ATen/ops/add.h>

namespace berth {
namespace {

at::Tensor Rounded(const at::Tensor& x, DType dtype) {
  return x.to(dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16);
}

}  // namespace

LayerCacheSpec Block::cache_spec() const { return mixer != nullptr ? mixer->cache_spec(dtype) : LayerCacheSpec{}; }

at::Tensor Block::Forward(const at::Tensor& x, const StepBatch& batch) const {
  at::Tensor stream = x;
  if (mixer != nullptr) {
    const at::Tensor input = Rounded(stream, dtype);
    at::Tensor mixed = (*mixer)(input_norm.defined() ? input_norm(input) : input, batch);
    if (post_mixer_norm.defined()) mixed = post_mixer_norm(mixed);
    stream = at::add(stream, mixed, residual_scale);
  }
  if (mlp != nullptr) {
    const at::Tensor input = Rounded(stream, dtype);
    at::Tensor fed = (*mlp)(pre_mlp_norm.defined() ? pre_mlp_norm(input) : input);
    if (post_mlp_norm.defined()) fed = post_mlp_norm(fed);
    stream = at::add(stream, fed, residual_scale);
  }
  return stream;
}

at::Tensor ParallelBlock::Forward(const at::Tensor& x, const StepBatch& batch) const {
  const at::Tensor normed = input_norm(x);
  return at::add(at::add(x, (*mixer)(normed, batch)), (*mlp)(normed));
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
