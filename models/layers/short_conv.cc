#include "models/layers/short_conv.h"

#include <ATen/ops/mul.h>

#include "models/ops/causal_conv/causal_conv.h"

namespace berth {

std::unique_ptr<ShortConv> ShortConv::Load(WeightLoader& weights, const std::string& prefix,
                                           const ShortConvConfig& config) {
  auto mixer = std::make_unique<ShortConv>();
  mixer->config_ = config;
  const int64_t hidden = config.hidden;
  mixer->in_ = LoadLinear(weights, hidden, {{.name = prefix + "in_proj", .out = 3 * hidden, .has_bias = config.bias}});
  mixer->out_ = LoadLinear(weights, hidden, {{.name = prefix + "out_proj", .out = hidden, .has_bias = config.bias}});
  mixer->conv_weight_ = weights.GetFloat32(prefix + "conv.weight", {hidden, 1, config.kernel})
                            .reshape({hidden, config.kernel})
                            .t()
                            .contiguous();
  if (config.bias) mixer->conv_bias_ = weights.GetFloat32(prefix + "conv.bias", {hidden});
  return mixer;
}

LayerCacheSpec ShortConv::cache_spec(DType dtype) const {
  return {.states = {{.name = "conv", .shape = {config_.kernel - 1, config_.hidden}, .dtype = dtype}}};
}

at::Tensor ShortConv::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const at::Tensor projected = in_(x, batch.execution());
  const auto part = [&](int64_t index) { return projected.narrow(1, index * config_.hidden, config_.hidden); };
  const at::Tensor input = at::mul(part(0), part(2));
  const at::Tensor y =
      ops::CausalConv(input, conv_weight_, conv_bias_, config_.layer, /*state=*/0, batch, ops::ConvActivation::kNone);
  return out_(at::mul(part(1), y), batch.execution());
}

}  // namespace berth
