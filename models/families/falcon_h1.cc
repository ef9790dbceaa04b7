// falcon_h1: attention and a Mamba-2 mixer side by side on the same normed input, summed; muP constants on nearly every
// product, all folded into the weights here. Source: transformers' models/falcon_h1.
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/hybrid.h"

namespace berth {
namespace {

struct FalconH1Config {
  TransformerConfig transformer;
  Mamba2Config mixer;
  double key_multiplier = 1;
  double attention_in_multiplier = 1;
  double attention_out_multiplier = 1;
  double gate_multiplier = 1;
  double down_multiplier = 1;
};

Mamba2Config ReadMixer(ConfigReader& config, const TransformerConfig& t) {
  Mamba2Config c = ReadMamba2(config, t.hidden, t.norm_eps, {.width = "mamba_d_ssm", .same_head_dim = "mamba_d_head"});
  c.out_bias = config.BoolOr("projectors_bias", false);
  c.norm_groups = config.BoolOr("mamba_rms_norm", false) ? c.groups : 0;
  c.gate_first = !config.BoolOr("mamba_norm_before_gate", true);
  ReadTimeStepLimit(config, &c);
  const std::vector<double> parts = config.DoubleListOr("ssm_multipliers", {1, 1, 1, 1, 1});
  config.Require(parts.size() == 5, "ssm_multipliers", "does not have 5 entries");
  if (!config.status().ok()) return c;
  std::copy(parts.begin(), parts.end(), c.part_scales.begin());
  c.input_scale = config.DoubleOr("ssm_in_multiplier", 1);
  c.output_scale = config.DoubleOr("ssm_out_multiplier", 1);
  return c;
}

FalconH1Config Read(ConfigReader& config) {
  FalconH1Config c;
  c.transformer = ReadTransformer(config, {.norm_eps = 1e-5});
  config.RefuseUnless("hidden_act", "silu", "swish");  // the convolution's too
  c.transformer.qkv_bias = c.transformer.output_bias = config.BoolOr("attention_bias", false);
  c.transformer.mlp_bias = config.BoolOr("mlp_bias", false);
  c.transformer.embedding_scale = config.DoubleOr("embedding_multiplier", 1);
  c.mixer = ReadMixer(config, c.transformer);
  c.transformer.logit_scale = config.DoubleOr("lm_head_multiplier", 1);
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

std::unique_ptr<Mixer> LoadMixers(WeightLoader& weights, const std::string& prefix, FalconH1Config& c, int layer) {
  c.mixer.layer = layer;
  return std::make_unique<MixerPair>(Mamba2Mixer::Load(weights, prefix + "mamba.", c.mixer),
                                     LoadAttention(weights, prefix + "self_attn.", c.transformer, layer));
}

// The muP constants around attention, folded into its products.
void ScaleAttention(const FalconH1Config& c, LoadedAttention* parts) {
  const int64_t q_columns = parts->config.q_heads * parts->config.head_dim;
  const int64_t kv_columns = parts->config.kv_heads * parts->config.head_dim;
  ScaleLinear(&parts->qkv, 0, q_columns, c.attention_in_multiplier, 1);
  ScaleLinear(&parts->qkv, q_columns, kv_columns, c.attention_in_multiplier, c.key_multiplier);
  ScaleLinear(&parts->qkv, q_columns + kv_columns, kv_columns, c.attention_in_multiplier, 1);
  ScaleLinear(&parts->output, 0, c.transformer.hidden, 1, c.attention_out_multiplier);
}

}  // namespace

std::unique_ptr<Model> BuildFalconH1(ConfigReader& config, WeightLoader& weights) {
  FalconH1Config c = Read(config);
  TransformerConfig& t = c.transformer;
  ReadSharedRotary(config, weights, {.types = RotaryTypes()}, {}, &t);
  if (!config.status().ok()) return nullptr;
  t.transform_attention_weights = [&](int, LoadedAttention* parts) { ScaleAttention(c, parts); };
  const MlpConfig mlp = {.hidden = t.hidden,
                         .intermediate = t.intermediate,
                         .bias = t.mlp_bias,
                         .activation = t.activation,
                         .gate_scale = c.gate_multiplier,
                         .output_scale = c.down_multiplier};
  DecoderModel::Parts parts = LoadEmbeddingAndHead(weights, t, "model.final_layernorm");
  for (int i = 0; i < static_cast<int>(t.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    parts.layers.push_back(LoadHybridBlock(weights, prefix, t, LoadMixers(weights, prefix, c, i),
                                           LoadGatedMlp(weights, prefix + "feed_forward.", mlp)));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace berth
