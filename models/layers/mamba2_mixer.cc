#include "models/layers/mamba2_mixer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>

#include "models/ops/causal_conv/causal_conv.h"

namespace berth {
namespace {

constexpr int kConvState = 0;
constexpr int kRecurrentState = 1;

// The factor of each output row of the input product; undefined where all are 1.
at::Tensor RowScales(const Mamba2Config& config) {
  if (config.part_scales == std::array<double, 5>{1, 1, 1, 1, 1}) return {};
  const std::array<int64_t, 5> sizes = {config.inner(), config.inner(), config.groups * config.state_dim,
                                        config.groups * config.state_dim, config.heads};
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parts.push_back(at::full({sizes[i]}, config.part_scales[i], at::TensorOptions().dtype(at::kFloat)));
  }
  return at::cat(parts, 0);
}

at::Tensor ScaleRows(const at::Tensor& tensor, const at::Tensor& scales) {
  const at::Tensor factors = scales.to(tensor.device());
  const at::Tensor wide = tensor.dim() == 2 ? factors.unsqueeze(1) : factors;
  return at::mul(tensor.to(at::kFloat), wide).to(tensor.scalar_type());
}

}  // namespace

std::unique_ptr<Mamba2Mixer> Mamba2Mixer::Load(WeightLoader& weights, const std::string& prefix,
                                               const Mamba2Config& config) {
  auto mixer = std::make_unique<Mamba2Mixer>();
  mixer->config_ = config;
  const int64_t channels = config.conv_channels();
  LinearWeights in = LoadLinear(weights, config.hidden,
                                {{.name = prefix + "in_proj",
                                  .out = config.inner() + channels + config.heads,
                                  .has_bias = config.in_bias,
                                  .input_scale = config.input_scale}});
  if (const at::Tensor scales = RowScales(config); scales.defined()) {
    in.weight = ScaleRows(in.weight, scales);
    if (config.in_bias) in.bias = ScaleRows(in.bias, scales);
  }
  mixer->in_ = in;
  mixer->out_ = LoadLinear(weights, config.inner(),
                           {{.name = prefix + "out_proj",
                             .out = config.hidden,
                             .has_bias = config.out_bias,
                             .output_scale = config.output_scale}});
  mixer->conv_weight_ = weights.GetFloat32(prefix + "conv1d.weight", {channels, 1, config.kernel})
                            .reshape({channels, config.kernel})
                            .t()
                            .contiguous();
  if (config.conv_bias) mixer->conv_bias_ = weights.GetFloat32(prefix + "conv1d.bias", {channels});
  mixer->a_ = at::neg(at::exp(weights.GetFloat32(prefix + "A_log", {config.heads})));
  mixer->d_ = weights.GetFloat32(prefix + "D", {config.heads});
  mixer->dt_bias_ = weights.GetFloat32(prefix + "dt_bias", {config.heads});
  if (config.norm_groups > 0) mixer->norm_weight_ = weights.GetFloat32(prefix + "norm.weight", {config.inner()});
  return mixer;
}

LayerCacheSpec Mamba2Mixer::cache_spec(DType dtype) const {
  return {.states = {{.name = "conv", .shape = {config_.kernel - 1, config_.conv_channels()}, .dtype = dtype},
                     {.name = "recurrent",
                      .shape = {config_.heads, config_.state_dim, config_.head_dim},
                      .dtype = DType::kFloat32,
                      .prompt_dependent = config_.limits_prompts()}}};
}

at::Tensor Mamba2Mixer::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const at::Tensor projected = in_(x, batch.execution());
  const at::Tensor gate = projected.narrow(1, 0, config_.inner());
  const at::Tensor conv_input = projected.narrow(1, config_.inner(), config_.conv_channels());
  const at::Tensor dt = projected.narrow(1, config_.inner() + config_.conv_channels(), config_.heads);
  const at::Tensor xbc = ops::CausalConv(conv_input, conv_weight_, conv_bias_, config_.layer, kConvState, batch);
  const at::Tensor y = ops::Mamba2Scan(xbc, dt, a_, d_, dt_bias_,
                                       {.layer = config_.layer,
                                        .state = kRecurrentState,
                                        .heads = config_.heads,
                                        .head_dim = config_.head_dim,
                                        .state_dim = config_.state_dim,
                                        .groups = config_.groups,
                                        .dt_min = config_.dt_min,
                                        .dt_max = config_.dt_max},
                                       batch);
  if (config_.norm_groups == 0)
    return out_(at::mul(y, ops::Activate(gate, ops::Activation::kSilu, batch.execution())), batch.execution());
  return out_(ops::GatedRmsNorm(y, gate, norm_weight_, config_.norm_eps, config_.norm_groups, config_.gate_first,
                                batch.execution()),
              batch.execution());
}

}  // namespace berth
