// falcon_h1: attention and a Mamba-2 mixer side by side on the same normed input, summed; muP constants on nearly every
// product, all folded into the weights here. Source: transformers' models/falcon_h1.
#include <ATen/ops/mul.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/transformer.h"
#include "models/layers/mamba2_mixer.h"

namespace berth {
namespace {

class FalconH1Layer : public DecoderLayer {
 public:
  FalconH1Layer(Attention attention, Mamba2Mixer mixer, GatedMlp mlp, DType dtype)
      : attention_(std::move(attention)), mixer_(std::move(mixer)), mlp_(std::move(mlp)), dtype_(dtype) {}

  LayerCacheSpec cache_spec() const override {
    return {.kv = attention_.cache_spec(dtype_), .states = mixer_.cache_specs(dtype_)};
  }

  at::Tensor Forward(const at::Tensor& x, const StepBatch& batch) const override {
    const at::Tensor normed = input_norm(x);
    const at::Tensor middle = x.add(mixer_(normed, batch).add_(attention_(normed, batch)));
    return middle.add(mlp_(pre_mlp_norm(middle)));
  }

  RmsNorm input_norm, pre_mlp_norm;

 private:
  Attention attention_;
  Mamba2Mixer mixer_;
  GatedMlp mlp_;
  DType dtype_;
};

struct FalconH1Config {
  TransformerConfig transformer;
  Mamba2Config mixer;
  double lm_head_multiplier = 1;
  double key_multiplier = 1;
  double attention_in_multiplier = 1;
  double attention_out_multiplier = 1;
  double gate_multiplier = 1;
  double down_multiplier = 1;
};

Mamba2Config ReadMixer(ConfigReader& config, const TransformerConfig& t) {
  Mamba2Config c;
  c.hidden = t.hidden;
  c.heads = config.Int("mamba_n_heads", 1, kMaxHeads);
  const int64_t expand = config.IntOr("mamba_expand", 2, 1, 1024);
  const int64_t inner = config.IntOr("mamba_d_ssm", expand * t.hidden, 1, kMaxDimension);
  config.Require(inner % c.heads == 0, "mamba_n_heads", "does not divide the mixer's width (mamba_d_ssm)");
  c.head_dim = inner / c.heads;
  c.state_dim = config.Int("mamba_d_state", 1, kMaxDimension);
  c.groups = config.IntOr("mamba_n_groups", 1, 1, kMaxHeads);
  config.Require(c.heads % c.groups == 0, "mamba_n_heads", "is not a multiple of mamba_n_groups");
  c.kernel = config.IntOr("mamba_d_conv", 4, 2, 64);
  c.conv_bias = config.BoolOr("mamba_conv_bias", true);
  c.in_bias = config.BoolOr("mamba_proj_bias", false);
  c.out_bias = config.BoolOr("projectors_bias", false);
  c.norm_groups = config.BoolOr("mamba_rms_norm", false) ? c.groups : 0;
  c.gate_first = !config.BoolOr("mamba_norm_before_gate", true);
  c.norm_eps = t.norm_eps;
  const std::vector<double> limit = config.DoubleListOr("time_step_limit", {0, ConfigReader::kAny}, 0);
  config.Require(limit.size() == 2 && limit[0] <= limit[1], "time_step_limit", "is not a pair [min, max]");
  const std::vector<double> parts = config.DoubleListOr("ssm_multipliers", {1, 1, 1, 1, 1});
  config.Require(parts.size() == 5, "ssm_multipliers", "does not have 5 entries");
  if (!config.status().ok()) return c;
  c.dt_min = limit[0];
  c.dt_max = limit[1];
  std::copy(parts.begin(), parts.end(), c.part_scales.begin());
  c.input_scale = config.DoubleOr("ssm_in_multiplier", 1);
  c.output_scale = config.DoubleOr("ssm_out_multiplier", 1);
  return c;
}

FalconH1Config Read(ConfigReader& config) {
  FalconH1Config c;
  c.transformer = ReadTransformer(config, /*tied_by_default=*/false);
  config.RefuseUnless("hidden_act", "silu");
  c.transformer.qkv_bias = c.transformer.output_bias = config.BoolOr("attention_bias", false);
  c.transformer.mlp_bias = config.BoolOr("mlp_bias", false);
  c.transformer.embedding_scale = config.DoubleOr("embedding_multiplier", 1);
  c.mixer = ReadMixer(config, c.transformer);
  c.lm_head_multiplier = config.DoubleOr("lm_head_multiplier", 1);
  c.key_multiplier = config.DoubleOr("key_multiplier", 1);
  c.attention_in_multiplier = config.DoubleOr("attention_in_multiplier", 1);
  c.attention_out_multiplier = config.DoubleOr("attention_out_multiplier", 1);
  const std::vector<double> mlp = config.DoubleListOr("mlp_multipliers", {1, 1});
  config.Require(mlp.size() == 2, "mlp_multipliers", "does not have 2 entries");
  if (mlp.size() == 2) {
    c.gate_multiplier = mlp[0];
    c.down_multiplier = mlp[1];
  }
  return c;
}

Attention LoadAttention(WeightLoader& weights, const FalconH1Config& c, int layer,
                        const std::shared_ptr<RotaryEmbedding>& rotary) {
  const TransformerConfig& t = c.transformer;
  const std::string prefix = absl::StrCat("model.layers.", layer, ".self_attn.");
  const auto part = [&](const char* name, int64_t heads, double output_scale) -> LinearPart {
    return {.name = prefix + name,
            .out = heads * t.head_dim,
            .has_bias = t.qkv_bias,
            .input_scale = c.attention_in_multiplier,
            .output_scale = output_scale};
  };
  Attention::Weights parts;
  parts.qkv = LoadLinear(
      weights, t.hidden,
      {part("q_proj", t.q_heads, 1), part("k_proj", t.kv_heads, c.key_multiplier), part("v_proj", t.kv_heads, 1)});
  parts.output = LoadLinear(weights, t.q_heads * t.head_dim,
                            {{.name = prefix + "o_proj",
                              .out = t.hidden,
                              .has_bias = t.output_bias,
                              .output_scale = c.attention_out_multiplier}});
  parts.rotary = rotary;
  return Attention({.layer = layer,
                    .q_heads = t.q_heads,
                    .kv_heads = t.kv_heads,
                    .head_dim = t.head_dim,
                    .scale = 1 / std::sqrt(static_cast<double>(t.head_dim))},
                   std::move(parts));
}

GatedMlp LoadMlp(WeightLoader& weights, const FalconH1Config& c, int layer) {
  const TransformerConfig& t = c.transformer;
  const std::string prefix = absl::StrCat("model.layers.", layer, ".feed_forward.");
  GatedMlp mlp;
  mlp.gate_up = LoadLinear(
      weights, t.hidden,
      {{.name = prefix + "gate_proj", .out = t.intermediate, .has_bias = t.mlp_bias, .output_scale = c.gate_multiplier},
       {.name = prefix + "up_proj", .out = t.intermediate, .has_bias = t.mlp_bias}});
  mlp.down = LoadLinear(
      weights, t.intermediate,
      {{.name = prefix + "down_proj", .out = t.hidden, .has_bias = t.mlp_bias, .output_scale = c.down_multiplier}});
  return mlp;
}

}  // namespace

std::unique_ptr<DecoderModel> BuildFalconH1(ConfigReader& config, WeightLoader& weights) {
  FalconH1Config c = Read(config);
  const RopeConfig rope = ReadRope(config, {.types = RotaryTypes()});
  if (!config.status().ok()) return nullptr;
  const TransformerConfig& t = c.transformer;
  DecoderModel::Parts parts = LoadEnds(weights, t, "model.final_layernorm.weight");
  parts.final_norm.weight = at::mul(parts.final_norm.weight, c.lm_head_multiplier);
  const auto rotary = std::make_shared<RotaryEmbedding>(rope, t.head_dim, weights.options().device);
  for (int i = 0; i < static_cast<int>(t.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    c.mixer.layer = i;
    auto layer = std::make_unique<FalconH1Layer>(LoadAttention(weights, c, i, rotary),
                                                 Mamba2Mixer::Load(weights, prefix + "mamba.", c.mixer),
                                                 LoadMlp(weights, c, i), weights.options().dtype);
    layer->input_norm = LoadNorm(weights, prefix + "input_layernorm.weight", t.hidden, t.norm_eps);
    layer->pre_mlp_norm = LoadNorm(weights, prefix + "pre_ff_layernorm.weight", t.hidden, t.norm_eps);
    parts.layers.push_back(std::move(layer));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace berth
