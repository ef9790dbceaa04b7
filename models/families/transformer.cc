#include "models/families/transformer.h"

#include <ATen/ops/add.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

Attention LoadAttention(WeightLoader& weights, const TransformerConfig& c, int layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".self_attn.");
  const int64_t q_columns = c.q_heads * c.head_dim;
  const int64_t kv_columns = c.kv_heads * c.head_dim;
  Attention::Weights parts;
  parts.qkv = LoadLinear(weights, c.hidden,
                         {{.name = prefix + "q_proj", .out = q_columns, .has_bias = c.qkv_bias},
                          {.name = prefix + "k_proj", .out = kv_columns, .has_bias = c.qkv_bias},
                          {.name = prefix + "v_proj", .out = kv_columns, .has_bias = c.qkv_bias}});
  parts.output =
      LoadLinear(weights, q_columns, {{.name = prefix + "o_proj", .out = c.hidden, .has_bias = c.output_bias}});
  if (c.qk_norm) {
    parts.q_norm = LoadNorm(weights, prefix + "q_norm.weight", c.head_dim, c.norm_eps, c.norm_adds_one);
    parts.k_norm = LoadNorm(weights, prefix + "k_norm.weight", c.head_dim, c.norm_eps, c.norm_adds_one);
  }
  parts.rotary = c.rotaries[layer];
  const double scale = c.score_scale != 0 ? c.score_scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
  return Attention({.layer = layer,
                    .q_heads = c.q_heads,
                    .kv_heads = c.kv_heads,
                    .head_dim = c.head_dim,
                    .window = c.windows[layer],
                    .scale = scale,
                    .softcap = c.score_softcap},
                   std::move(parts));
}

GatedMlp LoadMlp(WeightLoader& weights, const TransformerConfig& c, int layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".mlp.");
  GatedMlp mlp;
  mlp.gate_up = LoadLinear(weights, c.hidden,
                           {{.name = prefix + "gate_proj", .out = c.intermediate, .has_bias = c.mlp_bias},
                            {.name = prefix + "up_proj", .out = c.intermediate, .has_bias = c.mlp_bias}});
  mlp.down =
      LoadLinear(weights, c.intermediate, {{.name = prefix + "down_proj", .out = c.hidden, .has_bias = c.mlp_bias}});
  mlp.activation = c.activation;
  return mlp;
}

}  // namespace

TransformerConfig ReadTransformer(ConfigReader& config, bool tied_by_default) {
  TransformerConfig c;
  c.vocab_size = config.Int("vocab_size", 1, kMaxVocabulary);
  c.hidden = config.Int("hidden_size", 1, kMaxDimension);
  c.intermediate = config.Int("intermediate_size", 1, kMaxDimension);
  c.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers);
  c.q_heads = config.Int("num_attention_heads", 1, kMaxHeads);
  c.kv_heads = config.IntOr("num_key_value_heads", c.q_heads, 1, kMaxHeads);
  config.Require(c.q_heads % c.kv_heads == 0, "num_attention_heads", "is not a multiple of num_key_value_heads");
  c.head_dim = config.IntOr("head_dim", c.hidden / c.q_heads, 1, kMaxDimension);
  config.Require(c.head_dim > 0 && c.head_dim % 2 == 0, config.Has("head_dim") ? "head_dim" : "hidden_size",
                 "gives heads of an odd dimension, which rotary positions cannot pair");
  c.norm_eps = config.DoubleOr("rms_norm_eps", 1e-6, 0, 1);
  c.tied_head = config.BoolOr("tie_word_embeddings", tied_by_default);
  c.windows.assign(c.num_layers, 0);
  config.RefuseUnless("quantization_config");
  return c;
}

std::vector<int64_t> ReadWindows(ConfigReader& config, int64_t num_layers, int64_t window,
                                 const std::vector<int64_t>& fallback) {
  if (!config.Has("layer_types")) return fallback;
  const std::vector<std::string> types = config.StringList("layer_types");
  config.Require(static_cast<int64_t>(types.size()) == num_layers, "layer_types",
                 "does not have num_hidden_layers entries");
  std::vector<int64_t> windows(num_layers, 0);
  for (size_t i = 0; i < types.size() && i < windows.size(); ++i) {
    const bool sliding = types[i] == "sliding_attention";
    config.Require(sliding || types[i] == "full_attention", "layer_types",
                   "holds a type other than full_attention and sliding_attention");
    config.Require(!sliding || window > 0, "sliding_window", "is needed by layer_types");
    windows[i] = sliding ? window : 0;
  }
  return windows;
}

RmsNorm LoadNorm(WeightLoader& weights, const std::string& name, int64_t dim, double eps, bool adds_one) {
  const at::Tensor weight = weights.GetFloat32(name, {dim});
  return {.weight = adds_one ? at::add(weight, 1.0) : weight, .eps = eps};
}

DecoderModel::Parts LoadEnds(WeightLoader& weights, const TransformerConfig& c, const std::string& norm_name) {
  DecoderModel::Parts parts;
  parts.embedding = weights.Get("model.embed_tokens.weight", {c.vocab_size, c.hidden});
  parts.embedding_scale = c.embedding_scale;
  parts.final_norm = LoadNorm(weights, norm_name, c.hidden, c.norm_eps, c.norm_adds_one);
  parts.logit_softcap = c.logit_softcap;
  if (c.tied_head) {
    parts.head.weight = parts.embedding;
    weights.IgnoreUnder("lm_head.weight");  // some checkpoints store the tied matrix twice
  } else {
    parts.head = LoadLinear(weights, c.hidden, {{.name = "lm_head", .out = c.vocab_size}});
  }
  return parts;
}

std::unique_ptr<DecoderModel> BuildTransformer(WeightLoader& weights, const TransformerConfig& c) {
  DecoderModel::Parts parts = LoadEnds(weights, c, "model.norm.weight");
  for (int i = 0; i < static_cast<int>(c.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const auto norm = [&](const char* name) {
      return LoadNorm(weights, absl::StrCat(prefix, name, ".weight"), c.hidden, c.norm_eps, c.norm_adds_one);
    };
    auto block =
        std::make_unique<AttentionBlock>(LoadAttention(weights, c, i), LoadMlp(weights, c, i), weights.options().dtype);
    block->input_norm = norm("input_layernorm");
    if (c.post_norms) {
      block->post_attention_norm = norm("post_attention_layernorm");
      block->pre_mlp_norm = norm("pre_feedforward_layernorm");
      block->post_mlp_norm = norm("post_feedforward_layernorm");
    } else {
      block->pre_mlp_norm = norm("post_attention_layernorm");
    }
    parts.layers.push_back(std::move(block));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace berth
