#include "models/layers/mamba_mixer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/neg.h>

#include "absl/strings/str_cat.h"
#include "models/ops/causal_conv/causal_conv.h"

namespace berth {
namespace {

constexpr int kConvState = 0;
constexpr int kRecurrentState = 1;

// The even rows, then the odd ones.
at::Tensor Deinterleaved(const at::Tensor& tensor) {
  const int64_t rows = tensor.size(0);
  return at::cat({tensor.slice(0, 0, rows, 2), tensor.slice(0, 1, rows, 2)}, 0);
}

}  // namespace

std::unique_ptr<MambaMixer> MambaMixer::Load(WeightLoader& weights, const std::string& prefix,
                                             const MambaConfig& config) {
  auto mixer = std::make_unique<MambaMixer>();
  mixer->config_ = config;
  LinearWeights in = LoadLinear(weights, config.hidden,
                                {{.name = prefix + "in_proj", .out = 2 * config.inner, .has_bias = config.proj_bias}});
  if (config.heads > 0) {
    in.weight = Deinterleaved(in.weight);
    if (config.proj_bias) in.bias = Deinterleaved(in.bias);
  }
  mixer->in_ = in;
  mixer->out_ = LoadLinear(weights, config.inner,
                           {{.name = prefix + "out_proj", .out = config.hidden, .has_bias = config.proj_bias}});
  mixer->conv_weight_ = weights.GetFloat32(prefix + "conv1d.weight", {config.inner, 1, config.kernel})
                            .reshape({config.inner, config.kernel})
                            .t()
                            .contiguous();
  if (config.conv_bias) mixer->conv_bias_ = weights.GetFloat32(prefix + "conv1d.bias", {config.inner});
  mixer->LoadProjections(weights, prefix);
  mixer->LoadNorms(weights, prefix);
  return mixer;
}

void MambaMixer::LoadProjections(WeightLoader& weights, const std::string& prefix) {
  const int64_t groups = config_.groups();
  const int64_t width = config_.inner / groups;
  const int64_t outputs = config_.dt_rank + 2 * config_.state_dim;
  const bool stacked = config_.heads > 0;
  const std::string x_name = prefix + (stacked ? "x_proj_weight" : "x_proj.weight");
  const std::string dt_name = prefix + (stacked ? "dt_proj_weight" : "dt_proj.weight");
  at::Tensor a_log, x_proj, dt_proj;
  if (stacked) {
    x_proj = weights.GetMatrix(x_name, {groups, outputs, width});
    dt_proj = weights.GetMatrix(dt_name, {groups, width, config_.dt_rank});
    dt_bias_ = weights.GetFloat32(prefix + "dt_proj_bias", {groups, width}).reshape({config_.inner});
    a_log = weights.GetFloat32(prefix + "A_log", {groups, width, config_.state_dim});
    d_ = weights.GetFloat32(prefix + "D", {groups, width}).reshape({config_.inner});
  } else {
    x_proj = weights.GetMatrix(x_name, {outputs, width}).unsqueeze(0);
    dt_proj = weights.GetMatrix(dt_name, {width, config_.dt_rank}).unsqueeze(0);
    dt_bias_ = weights.GetFloat32(prefix + "dt_proj.bias", {width});
    a_log = weights.GetFloat32(prefix + "A_log", {width, config_.state_dim});
    d_ = weights.GetFloat32(prefix + "D", {width});
  }
  x_proj_ = PackStack(weights, {x_name}, x_proj);
  dt_proj_ = PackStack(weights, {dt_name}, dt_proj);
  a_ = at::neg(at::exp(a_log)).reshape({config_.inner, config_.state_dim}).t().contiguous();
}

void MambaMixer::LoadNorms(WeightLoader& weights, const std::string& prefix) {
  if (config_.norms == MambaConfig::Norms::kNone) return;
  const auto load = [&](const char* name, int64_t dim) {
    if (config_.norms == MambaConfig::Norms::kWeightless) return UnitNorm(weights, dim, config_.norm_eps);
    return LoadNorm(weights, absl::StrCat(prefix, name, ".weight"), dim, config_.norm_eps);
  };
  dt_norm_ = load("dt_layernorm", config_.dt_rank);
  b_norm_ = load("b_layernorm", config_.state_dim);
  c_norm_ = load("c_layernorm", config_.state_dim);
}

LayerCacheSpec MambaMixer::cache_spec(DType dtype) const {
  return {.states = {{.name = "conv", .shape = {config_.kernel - 1, config_.inner}, .dtype = dtype},
                     {.name = "recurrent", .shape = {config_.state_dim, config_.inner}, .dtype = DType::kFloat32}}};
}

void MambaMixer::Project(ops::MambaInputs& inputs, Execution& execution) const {
  const int64_t tokens = inputs.x.size(0);
  const at::Tensor parts = ops::BlockDiagonalMatMul(inputs.x, x_proj_, execution).view({tokens, config_.groups(), -1});
  const at::Tensor step = parts.narrow(2, 0, config_.dt_rank);
  inputs.b = parts.narrow(2, config_.dt_rank, config_.state_dim);
  inputs.c = parts.narrow(2, config_.dt_rank + config_.state_dim, config_.state_dim);
  if (dt_norm_.defined()) {  // without heads: one group
    const auto norm = [&](const Norm& norm, const at::Tensor& part) {
      at::Tensor slice = part.select(1, 0);
      norm.InPlace(slice, execution);
    };
    norm(dt_norm_, step);
    norm(b_norm_, inputs.b);
    norm(c_norm_, inputs.c);
  }
  inputs.dt = ops::BlockDiagonalMatMul(step.flatten(1), dt_proj_, execution);
}

at::Tensor MambaMixer::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const at::Tensor projected = in_(x, batch.execution());
  ops::MambaInputs inputs;
  inputs.gate = projected.narrow(1, config_.inner, config_.inner);
  inputs.x = ops::CausalConv(projected.narrow(1, 0, config_.inner), conv_weight_, conv_bias_, config_.layer, kConvState,
                             batch);
  Project(inputs, batch.execution());
  return out_(ops::MambaScan(inputs, a_, d_, dt_bias_, config_.layer, kRecurrentState, batch), batch.execution());
}

}  // namespace berth
