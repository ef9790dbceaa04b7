#include "models/layers/rg_lru.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softplus.h>

#include "models/ops/causal_conv/causal_conv.h"
#include "models/ops/elementwise/elementwise.h"

namespace berth {
namespace {

constexpr int kConvState = 0;
constexpr int kRecurrentState = 1;
constexpr double kRate = -8;  // De et al., 2024, equation 6: the constant c

ops::RgLruWeights LoadRecurrence(WeightLoader& weights, const std::string& prefix, const RgLruConfig& c) {
  const int64_t block_width = c.width / c.blocks;
  const auto bias = [&](const char* name) {
    return weights.GetFloat32(prefix + name, {c.blocks, block_width}).reshape({c.width});
  };
  return {.input_bias = bias("input_gate_bias"),
          .recurrence_bias = bias("recurrent_gate_bias"),
          .rate = at::mul(at::softplus(weights.GetFloat32(prefix + "recurrent_param", {c.width})), kRate)};
}

std::vector<ops::PackedMatrix> LoadGates(WeightLoader& weights, const std::string& prefix, const RgLruConfig& c) {
  const int64_t block_width = c.width / c.blocks;
  const std::vector<std::string> names = {prefix + "input_gate_weight", prefix + "recurrent_gate_weight"};
  std::vector<at::Tensor> matrices;
  for (const std::string& name : names)
    matrices.push_back(weights.GetMatrix(name, {c.blocks, block_width, block_width}));
  return PackStack(weights, names, at::cat(matrices, 2).transpose(1, 2));
}

}  // namespace

std::unique_ptr<RgLruMixer> RgLruMixer::Load(WeightLoader& weights, const std::string& prefix,
                                             const RgLruConfig& config) {
  auto mixer = std::make_unique<RgLruMixer>();
  mixer->config_ = config;
  mixer->in_ = LoadLinear(weights, config.hidden,
                          {{.name = prefix + "linear_x", .out = config.width, .has_bias = true},
                           {.name = prefix + "linear_y", .out = config.width, .has_bias = true}});
  mixer->out_ =
      LoadLinear(weights, config.width, {{.name = prefix + "linear_out", .out = config.hidden, .has_bias = true}});
  mixer->conv_weight_ = weights.GetFloat32(prefix + "conv_1d.weight", {config.width, 1, config.kernel})
                            .reshape({config.width, config.kernel})
                            .t()
                            .contiguous();
  mixer->conv_bias_ = weights.GetFloat32(prefix + "conv_1d.bias", {config.width});
  mixer->gates_ = LoadGates(weights, prefix + "rg_lru.", config);
  mixer->recurrence_ = LoadRecurrence(weights, prefix + "rg_lru.", config);
  return mixer;
}

LayerCacheSpec RgLruMixer::cache_spec(DType dtype) const {
  return {.states = {{.name = "conv", .shape = {config_.kernel - 1, config_.width}, .dtype = dtype},
                     {.name = "recurrent", .shape = {config_.width}}}};
}

at::Tensor RgLruMixer::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const at::Tensor projected = in_(x, batch.execution());
  const at::Tensor input = ops::CausalConv(projected.narrow(1, 0, config_.width), conv_weight_, conv_bias_,
                                           config_.layer, kConvState, batch, ops::ConvActivation::kNone);
  const at::Tensor gates =
      ops::BlockDiagonalMatMul(input, gates_, batch.execution()).unflatten(1, {config_.blocks, -1});
  const at::Tensor y = ops::RgLru(input, gates, recurrence_, config_.layer, kRecurrentState, batch);
  return out_(at::mul(y, ops::Activate(projected.narrow(1, config_.width, config_.width), ops::Activation::kGeluTanh,
                                       batch.execution())),
              batch.execution());
}

}  // namespace berth
