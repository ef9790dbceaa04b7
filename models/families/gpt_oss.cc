// gpt_oss: sliding and full layers in turn, a sink in every head's softmax, experts with biases and a clamped gate
// whose weights may be stored as MXFP4. The constants of that gate are fields of the configuration, swiglu_alpha and
// swiglu_limit. Source: transformers' models/gpt_oss and integrations/mxfp4.py.
#include <ATen/ops/empty.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/transformer.h"
#include "models/layers/experts.h"

namespace berth {
namespace {

constexpr int64_t kBlockValues = 32;  // of one scale

// The 16 values of a 4-bit float (OCP Microscaling Formats v1.0: one sign, two exponent, one mantissa bit).
at::Tensor Fp4Values() {
  const std::vector<float> positive = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::vector<float> all = positive;
  for (float value : positive) all.push_back(-value);
  return at::tensor(all);
}

// Returns [experts, out, in] in the run's type, from two tensors:
// - `name`_blocks [experts, out, in / 32, 16]: two values a byte, the low half first;
// - `name`_scales [experts, out, in / 32]: exponents of two with a bias of 127.
at::Tensor LoadMxfp4(WeightLoader& weights, const std::string& name, int64_t experts, int64_t out, int64_t in) {
  const int64_t num_blocks = in / kBlockValues;
  const at::ScalarType type = weights.options().dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16;
  const at::Tensor bytes = weights.GetBytes(name + "_blocks", {experts, out, num_blocks, kBlockValues / 2});
  const at::Tensor scales = weights.GetBytes(name + "_scales", {experts, out, num_blocks});
  if (bytes.is_meta()) return at::empty({experts, out, in}, bytes.options().dtype(type));
  const at::Tensor exponents = scales.to(at::kInt).sub(127);
  const at::Tensor table = Fp4Values().to(bytes.device());
  const auto lookup = [&](const at::Tensor& codes) {
    return table.index_select(0, codes.flatten().to(at::kLong)).view(bytes.sizes());
  };
  const at::Tensor values = at::stack({lookup(bytes.bitwise_and(15)), lookup(bytes.bitwise_right_shift(4))}, -1);
  const at::Tensor scaled = at::ldexp(values.flatten(3), exponents.unsqueeze(-1));
  return scaled.reshape({experts, out, in}).to(type);
}

// [experts, out, in], stored so in MXFP4 and transposed else.
at::Tensor LoadMatrices(WeightLoader& weights, const std::string& name, int64_t experts, int64_t out, int64_t in) {
  if (weights.Has(name + "_blocks")) return LoadMxfp4(weights, name, experts, out, in);
  return weights.GetMatrix(name, {experts, in, out}).transpose(1, 2).contiguous();
}

// Rows gate, up, gate, up, ... to all gates, then all ups.
at::Tensor SplitGateUp(const at::Tensor& rows) {
  return rows.unflatten(1, {-1, 2}).transpose(1, 2).flatten(1, 2).contiguous();
}

std::unique_ptr<FeedForward> LoadGptOssExperts(WeightLoader& weights, const std::string& prefix,
                                               const TransformerConfig& c, const RouterConfig& router,
                                               const ops::SwigluConstants& swiglu) {
  const std::string name = prefix + "experts.";
  const int64_t n = router.num_experts;
  Experts::Weights parts;
  const auto load = [&](const std::string& matrix, int64_t out, int64_t in) {
    return LoadMatrices(weights, matrix, n, out, in);
  };
  const std::string up = name + "gate_up_proj", down = name + "down_proj";
  parts.up = PackStack(weights, {up}, SplitGateUp(load(up, 2 * c.intermediate, c.hidden)));
  parts.up_bias = MatMulBias(SplitGateUp(weights.Get(name + "gate_up_proj_bias", {n, 2 * c.intermediate})));
  parts.down = PackStack(weights, {down}, load(down, c.hidden, c.intermediate));
  parts.down_bias = MatMulBias(weights.Get(name + "down_proj_bias", {n, c.hidden}));
  return std::make_unique<Experts>(Router::Load(weights, prefix + "router", c.hidden, router, /*has_bias=*/true),
                                   std::move(parts),
                                   Experts::Options{.activation = ops::Activation::kClampedSwiglu, .swiglu = swiglu});
}

// transformers takes any number. A gate with an alpha of 0 or less does not gate, and a limit of 0 or less leaves no
// range.
ops::SwigluConstants ReadSwiglu(ConfigReader& config) {
  const ops::SwigluConstants trained;
  return {.alpha = static_cast<float>(config.DoubleOr("swiglu_alpha", trained.alpha, 1e-6, 1e6)),
          .limit = static_cast<float>(config.DoubleOr("swiglu_limit", trained.limit, 1e-6))};
}

}  // namespace

std::unique_ptr<Model> BuildGptOss(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadTransformer(config, {.head_dim = 64, .norm_eps = 1e-5});
  config.RefuseUnless("hidden_act", "silu");
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", true);
  const int64_t window = config.IntOr("sliding_window", 128, 1, kMaxWindow);
  c.windows = ReadWindows(config, c.num_layers, window, PeriodicLayerTypes(c.num_layers, 2, "sliding_attention"));
  config.Require(config.Has("rope_parameters") || config.Has("rope_scaling"), "rope_parameters", "is missing");
  ReadSharedRotary(config, weights, {.default_theta = 150000, .types = RotaryTypes()}, {}, &c);
  RouterConfig router = {.routing = Routing::kSoftmaxOfChosen};
  router.num_experts = config.Int(config.Has("num_experts") ? "num_experts" : "num_local_experts", 1, kMaxHeads);
  router.top_k = ReadTopK(config, 4, router.num_experts);
  if (config.Has("quantization_config")) {
    config.Require(c.hidden % kBlockValues == 0 && c.intermediate % kBlockValues == 0, "hidden_size",
                   "or intermediate_size is no multiple of 32, which MXFP4 needs");
  }
  const ops::SwigluConstants swiglu = ReadSwiglu(config);
  c.transform_attention_weights = [&](int layer, LoadedAttention* parts) {
    parts->weights.sinks = weights.GetFloat32(absl::StrCat("model.layers.", layer, ".self_attn.sinks"), {c.q_heads});
  };
  c.load_mlp = [&](WeightLoader& loader, const std::string& layer, int) {
    return LoadGptOssExperts(loader, layer + "mlp.", c, router, swiglu);
  };
  return BuildTransformer(config, weights, c);
}

}  // namespace berth
