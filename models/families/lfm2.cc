// lfm2 and lfm2_moe: short convolutions and full attention in turn; lfm2_moe with experts after its first layers,
// chosen by sigmoid scores. Source: transformers' models/{lfm2,lfm2_moe}.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/hybrid.h"
#include "models/layers/experts.h"
#include "models/layers/short_conv.h"

namespace berth {
namespace {

constexpr MlpNames kMlpNames = {.gate = "w1", .up = "w3", .down = "w2"};

struct Lfm2Config {
  TransformerConfig transformer;
  ShortConvConfig conv;
  std::vector<std::string> types;  // by layer
  int64_t num_dense = 0;           // layers before those with experts
  RouterConfig router;
  bool choice_bias = false;
  int64_t expert_intermediate = 0;
};

Lfm2Config Read(ConfigReader& config, const WeightLoader& weights, std::vector<std::string> default_types) {
  Lfm2Config c;
  TransformerConfig& t = c.transformer;
  t = ReadTransformer(config, {.tied_head = true, .may_lack_dense_mlp = true});
  t.kv_heads = config.IntOr("num_key_value_heads", 8, 1, kMaxHeads);
  config.Require(t.q_heads % t.kv_heads == 0, "num_attention_heads", "is not a multiple of num_key_value_heads");
  t.norm_eps = config.DoubleOr("norm_eps", 1e-5, 0, 1);
  t.tied_head = config.BoolOr("tie_embedding", t.tied_head);  // the older name wins
  t.qk_norm = QkNorm::kHead;
  t.attention_names = {.output = "out_proj", .q_norm = "q_layernorm", .k_norm = "k_layernorm"};
  ReadSharedRotary(config, weights, {.default_theta = 1e6, .types = RotaryTypes()}, {}, &t);
  c.conv = {
      .hidden = t.hidden, .kernel = config.IntOr("conv_L_cache", 3, 2, 64), .bias = config.BoolOr("conv_bias", false)};
  c.types = ReadLayerTypes(config, t.num_layers, {"conv", "full_attention"}, std::move(default_types));
  c.num_dense = t.num_layers;
  return c;
}

// The width that the configuration's adjustments make of intermediate_size.
int64_t AdjustIntermediate(ConfigReader& config, int64_t intermediate) {
  intermediate = config.IntOr("block_ff_dim", intermediate, 1, kMaxDimension);  // the older name wins
  if (!config.BoolOr("block_auto_adjust_ff_dim", true)) return intermediate;
  intermediate = 2 * intermediate / 3;
  if (config.IsNull("block_ffn_dim_multiplier")) return intermediate;
  const double multiplier = config.DoubleOr("block_ffn_dim_multiplier", 1, 1e-3, 1e3);
  const int64_t multiple = config.IntOr("block_multiple_of", 256, 1, kMaxDimension);
  intermediate = static_cast<int64_t>(multiplier * static_cast<double>(intermediate));
  return (intermediate + multiple - 1) / multiple * multiple;
}

std::vector<std::string> DefaultTypes(ConfigReader& config) {
  const int64_t num_layers = config.Int("num_hidden_layers", 1, kMaxLayers);
  if (!config.Has("full_attn_idxs")) return std::vector<std::string>(num_layers, "full_attention");
  std::vector<std::string> types(num_layers, "conv");
  for (int64_t i : config.IntList("full_attn_idxs", 0, num_layers - 1)) types[i] = "full_attention";
  return types;
}

std::unique_ptr<FeedForward> LoadFeedForward(WeightLoader& weights, const std::string& prefix, const Lfm2Config& c,
                                             int layer) {
  const TransformerConfig& t = c.transformer;
  if (layer < c.num_dense) {
    return LoadGatedMlp(weights, prefix, {.hidden = t.hidden, .intermediate = t.intermediate}, kMlpNames);
  }
  Router router = Router::Load(weights, prefix + "gate", t.hidden, c.router);
  if (c.choice_bias) router.set_choice_bias(weights.GetFloat32(prefix + "expert_bias", {c.router.num_experts}));
  return std::make_unique<Experts>(
      std::move(router),
      LoadExperts(weights, prefix + "experts.", c.router.num_experts, t.hidden, c.expert_intermediate,
                  {.gate = kMlpNames.gate, .up = kMlpNames.up, .down = kMlpNames.down}),
      Experts::Options{});
}

std::unique_ptr<Model> Build(ConfigReader& config, WeightLoader& weights, Lfm2Config c) {
  if (c.num_dense > 0) RequireIntermediate(config, c.transformer);
  if (!config.status().ok()) return nullptr;
  const TransformerConfig& t = c.transformer;
  DecoderModel::Parts parts = LoadEmbeddingAndHead(weights, t, "model.embedding_norm");
  for (int i = 0; i < static_cast<int>(t.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    c.conv.layer = i;
    std::unique_ptr<Mixer> mixer;
    if (c.types[i] == "conv") {
      mixer = ShortConv::Load(weights, prefix + "conv.", c.conv);
    } else {
      mixer = LoadAttention(weights, prefix + "self_attn.", t, i);
    }
    parts.layers.push_back(LoadHybridBlock(weights, prefix, t, std::move(mixer),
                                           LoadFeedForward(weights, prefix + "feed_forward.", c, i),
                                           {.mixer = "operator_norm", .mlp = "ffn_norm"}));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace

std::unique_ptr<Model> BuildLfm2(ConfigReader& config, WeightLoader& weights) {
  Lfm2Config c = Read(config, weights, DefaultTypes(config));
  c.transformer.intermediate = AdjustIntermediate(config, c.transformer.intermediate);
  config.Require(c.transformer.intermediate > 0, "intermediate_size", "is adjusted to nothing");
  return Build(config, weights, std::move(c));
}

std::unique_ptr<Model> BuildLfm2Moe(ConfigReader& config, WeightLoader& weights) {
  Lfm2Config c = Read(config, weights, {});
  c.num_dense = config.IntOr("num_dense_layers", 2, 0, kMaxLayers);
  c.router = {.routing = Routing::kSigmoid, .num_experts = config.IntOr("num_experts", 32, 1, kMaxHeads)};
  c.router.top_k = ReadTopK(config, 4, c.router.num_experts);
  c.router.renormalize = config.BoolOr("norm_topk_prob", true);
  c.router.sum_floor = 1e-6;
  c.router.scale = config.DoubleOr("routed_scaling_factor", 1);
  c.choice_bias = config.BoolOr("use_expert_bias", true);
  c.expert_intermediate = config.IntOr("moe_intermediate_size", 1792, 1, kMaxDimension);
  return Build(config, weights, std::move(c));
}

}  // namespace berth
