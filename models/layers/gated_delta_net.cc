#include "models/layers/gated_delta_net.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/neg.h>

#include <vector>

#include "models/ops/causal_conv/causal_conv.h"
#include "models/ops/elementwise/elementwise.h"

namespace berth {
namespace {

constexpr int kConvState = 0;
constexpr int kRecurrentState = 1;

// Rows [first, first + count) of each key head's share of `weight`, the heads in their order.
at::Tensor RowsOfHeads(const at::Tensor& weight, int64_t k_heads, int64_t first, int64_t count) {
  return weight.unflatten(0, {k_heads, -1}).narrow(1, first, count).flatten(0, 1);
}

// The checkpoint's rows are sorted by key head. A key head has the rows of its q and k, and those of v and the gates of
// the value heads that it serves. In the second tensor it has the rows of their b and a.
LinearWeights LoadInterleaved(WeightLoader& weights, const std::string& prefix, const GatedDeltaNetConfig& c) {
  const int64_t heads = c.v_heads / c.k_heads;
  const int64_t values = heads * c.value_dim;
  const std::string qkvz_name = prefix + "in_proj_qkvz.weight", ba_name = prefix + "in_proj_ba.weight";
  const at::Tensor qkvz = weights.GetMatrix(qkvz_name, {2 * c.keys() + 2 * c.values(), c.hidden});
  const at::Tensor ba = weights.GetMatrix(ba_name, {2 * c.v_heads, c.hidden});
  const at::Tensor rows =
      at::cat({RowsOfHeads(qkvz, c.k_heads, 0, c.key_dim), RowsOfHeads(qkvz, c.k_heads, c.key_dim, c.key_dim),
               RowsOfHeads(qkvz, c.k_heads, 2 * c.key_dim, values),
               RowsOfHeads(qkvz, c.k_heads, 2 * c.key_dim + values, values), RowsOfHeads(ba, c.k_heads, 0, heads),
               RowsOfHeads(ba, c.k_heads, heads, heads)},
              0);
  return MatrixOf(weights, {qkvz_name, ba_name}, rows);
}

LinearWeights LoadInput(WeightLoader& weights, const std::string& prefix, const GatedDeltaNetConfig& c) {
  switch (c.tensors) {
    case DeltaNetTensors::kInterleaved:
      return LoadInterleaved(weights, prefix, c);
    case DeltaNetTensors::kSplit:
      return LoadLinear(weights, c.hidden,
                        {{.name = prefix + "in_proj_qkv", .out = c.conv_channels()},
                         {.name = prefix + "in_proj_z", .out = c.values()},
                         {.name = prefix + "in_proj_b", .out = c.v_heads},
                         {.name = prefix + "in_proj_a", .out = c.v_heads}});
    case DeltaNetTensors::kSeparate:
      return LoadLinear(weights, c.hidden,
                        {{.name = prefix + "q_proj", .out = c.keys()},
                         {.name = prefix + "k_proj", .out = c.keys()},
                         {.name = prefix + "v_proj", .out = c.values()},
                         {.name = prefix + "g_proj", .out = c.values()},
                         {.name = prefix + "b_proj", .out = c.v_heads},
                         {.name = prefix + "a_proj", .out = c.v_heads}});
  }
  return {};
}

// [kernel, channels]. Three filters are taken one after the other, whatever the channels of each: transformers writes
// them in equal parts, which need not be those of q, k and v.
at::Tensor LoadConv(WeightLoader& weights, const std::string& prefix, const GatedDeltaNetConfig& c) {
  std::vector<at::Tensor> filters;
  const auto add = [&](const std::string& name, int64_t channels) {
    filters.push_back(weights.GetFloat32(name, {channels, 1, c.kernel}).reshape({channels, c.kernel}));
  };
  if (c.tensors != DeltaNetTensors::kSeparate) {
    add(prefix + "conv1d.weight", c.conv_channels());
  } else {
    const auto channels = [&](const std::string& name, int64_t fallback) {
      const std::vector<int64_t> shape = weights.Shape(name);
      return shape.empty() ? fallback : shape[0];
    };
    const std::string q = prefix + "q_conv1d.weight", k = prefix + "k_conv1d.weight";
    const int64_t q_channels = channels(q, c.keys());
    const int64_t k_channels = channels(k, c.keys());
    add(q, q_channels);
    add(k, k_channels);
    add(prefix + "v_conv1d.weight", c.conv_channels() - q_channels - k_channels);
  }
  return at::cat(filters, 0).t().contiguous();
}

}  // namespace

std::unique_ptr<GatedDeltaNet> GatedDeltaNet::Load(WeightLoader& weights, const std::string& prefix,
                                                   const GatedDeltaNetConfig& config) {
  const bool separate = config.tensors == DeltaNetTensors::kSeparate;
  auto mixer = std::make_unique<GatedDeltaNet>();
  mixer->config_ = config;
  mixer->in_ = LoadInput(weights, prefix, config);
  mixer->out_ = LoadLinear(weights, config.values(),
                           {{.name = prefix + (separate ? "o_proj" : "out_proj"), .out = config.hidden}});
  mixer->conv_weight_ = LoadConv(weights, prefix, config);
  mixer->rate_ = at::neg(at::exp(weights.GetFloat32(prefix + "A_log", {config.v_heads})));
  mixer->dt_bias_ = weights.GetFloat32(prefix + "dt_bias", {config.v_heads});
  mixer->norm_weight_ = weights.GetFloat32(prefix + (separate ? "o_norm.weight" : "norm.weight"), {config.value_dim})
                            .repeat({config.v_heads});
  return mixer;
}

LayerCacheSpec GatedDeltaNet::cache_spec(DType dtype) const {
  return {.states = {{.name = "conv", .shape = {config_.kernel - 1, config_.conv_channels()}, .dtype = dtype},
                     {.name = "recurrent", .shape = {config_.v_heads, config_.key_dim, config_.value_dim}}}};
}

at::Tensor GatedDeltaNet::operator()(const at::Tensor& x, const StepBatch& batch) const {
  const int64_t channels = config_.conv_channels();
  const at::Tensor projected = in_(x, batch.execution());
  const at::Tensor gate = projected.narrow(1, channels, config_.values());
  const at::Tensor b = projected.narrow(1, channels + config_.values(), config_.v_heads);
  const at::Tensor a = projected.narrow(1, channels + config_.values() + config_.v_heads, config_.v_heads);
  const at::Tensor qkv =
      ops::CausalConv(projected.narrow(1, 0, channels), conv_weight_, {}, config_.layer, kConvState, batch);
  const at::Tensor y = ops::GatedDeltaNet(qkv, a, b, rate_, dt_bias_,
                                          {.layer = config_.layer,
                                           .state = kRecurrentState,
                                           .k_heads = config_.k_heads,
                                           .v_heads = config_.v_heads,
                                           .key_dim = config_.key_dim,
                                           .value_dim = config_.value_dim,
                                           .beta_scale = config_.beta_scale},
                                          batch);
  return out_(ops::GatedRmsNorm(y, gate, norm_weight_, config_.norm_eps, config_.v_heads, /*gate_first=*/false,
                                batch.execution()),
              batch.execution());
}

}  // namespace berth
