#include "models/layers/block.h"

#include "models/ops/elementwise/elementwise.h"

namespace berth {
namespace {

// The stream rounded to the model's type, normed if there is a norm.
at::Tensor InputOf(const at::Tensor& stream, const Norm& norm, DType dtype, Execution& execution) {
  const at::ScalarType type = dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16;
  return norm.defined() ? norm(stream, type, execution) : stream.to(type);
}

}  // namespace

LayerCacheSpec Block::cache_spec() const { return mixer != nullptr ? mixer->cache_spec(dtype) : LayerCacheSpec{}; }

at::Tensor Block::Forward(const at::Tensor& x, const StepBatch& batch) const {
  Execution& execution = batch.execution();
  at::Tensor stream = x;
  if (mixer != nullptr) {
    at::Tensor mixed = (*mixer)(InputOf(stream, input_norm, dtype, execution), batch);
    if (post_mixer_norm.defined()) mixed = post_mixer_norm(mixed, execution);
    stream = ops::AddResidual(stream, mixed, execution, residual_scale);
  }
  if (mlp != nullptr) {
    at::Tensor fed = (*mlp)(InputOf(stream, pre_mlp_norm, dtype, execution), execution);
    if (post_mlp_norm.defined()) fed = post_mlp_norm(fed, execution);
    stream = ops::AddResidual(stream, fed, execution, residual_scale);
  }
  return stream;
}

at::Tensor ParallelBlock::Forward(const at::Tensor& x, const StepBatch& batch) const {
  Execution& execution = batch.execution();
  const at::Tensor normed = input_norm(x, execution);
  return ops::AddResidual(ops::AddResidual(x, (*mixer)(normed, batch), execution), (*mlp)(normed, execution),
                          execution);
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
