// llama4's text model. Its rotary layers see their own chunk only and have norms of q and k after the rotation. Between
// them stand layers without positions, which see everything. Each token uses one expert of many beside a shared one.
// Source: transformers' models/llama4.
#include <algorithm>
#include <utility>

#include "models/families/family.h"
#include "models/families/transformer.h"
#include "models/layers/experts.h"

namespace berth {
namespace {

struct Llama4Config {
  TransformerConfig transformer;
  std::vector<bool> rotates;      // by layer
  std::vector<int64_t> chunks;    // by layer; 0: none
  std::vector<bool> has_experts;  // by layer
  RouterConfig router;
  int64_t dense_intermediate = 0;
  bool qk_norm = true;
  double position_scale = 0;
  double position_floor = 1;
};

std::vector<bool> ReadExpertLayers(ConfigReader& config, int64_t num_layers) {
  std::vector<bool> has_experts(num_layers, false);
  const int64_t step = config.IntOr("interleave_moe_layer_step", 1, 0, kMaxLayers);  // 0: none
  std::vector<int64_t> periodic;
  for (int64_t i = step - 1; step > 0 && i < num_layers; i += step) periodic.push_back(i);
  for (int64_t i : config.IntListOr("moe_layers", periodic, 0, kMaxLayers)) {
    if (i < num_layers) has_experts[i] = true;
  }
  return has_experts;
}

std::vector<int64_t> ReadChunks(ConfigReader& config, const Llama4Config& c) {
  std::vector<std::string> types;
  const bool chunked = !config.IsNull("attention_chunk_size");
  for (bool rotates : c.rotates) types.push_back(rotates && chunked ? "chunked_attention" : "full_attention");
  types = ReadLayerTypes(config, c.transformer.num_layers, {"chunked_attention", "full_attention"}, types);
  const int64_t chunk = config.IntOr("attention_chunk_size", 8192, 1, kMaxWindow);
  std::vector<int64_t> chunks;
  for (const std::string& type : types) chunks.push_back(type == "chunked_attention" ? chunk : 0);
  return chunks;
}

Llama4Config Read(ConfigReader& config, const WeightLoader& weights) {
  Llama4Config c;
  TransformerConfig& t = c.transformer;
  t = ReadTransformer(config, {.norm_eps = 1e-5});
  t.activation = ReadActivation(config, "hidden_act", "silu");
  t.qkv_bias = t.output_bias = config.BoolOr("attention_bias", false);
  c.rotates = ReadRotatingLayers(config, t.num_layers);
  ReadSharedRotary(config, weights, {.default_theta = 5e5, .types = RotaryTypes()}, c.rotates, &t);
  c.chunks = ReadChunks(config, c);
  c.has_experts = ReadExpertLayers(config, t.num_layers);
  // A dense model says that it has 0 experts and chooses 0.
  if (std::find(c.has_experts.begin(), c.has_experts.end(), true) != c.has_experts.end()) {
    c.router.routing = Routing::kSigmoidOfChosen;
    c.router.num_experts = config.IntOr("num_local_experts", 16, 1, kMaxHeads);
    c.router.top_k = ReadTopK(config, 1, c.router.num_experts);
  }
  c.dense_intermediate = config.IntOr("intermediate_size_mlp", 16384, 1, kMaxDimension);
  c.qk_norm = config.BoolOr("use_qk_norm", true);
  if (config.BoolOr("attn_temperature_tuning", true)) {
    c.position_scale = config.DoubleOr("attn_scale", 0.1, 0, 1e6);
    c.position_floor = config.DoubleOr("floor_scale", 8192, 1, 1e12);
  }
  return c;
}

std::unique_ptr<FeedForward> LoadFeedForward(WeightLoader& weights, const std::string& prefix, const Llama4Config& c,
                                             int layer) {
  const TransformerConfig& t = c.transformer;
  MlpConfig mlp = {.hidden = t.hidden, .intermediate = t.intermediate, .activation = t.activation};
  if (!c.has_experts[layer]) {
    mlp.intermediate = c.dense_intermediate;
    return LoadGatedMlp(weights, prefix, mlp);
  }
  // Stored transposed.
  const int64_t n = c.router.num_experts;
  Experts::Weights parts;
  const auto load = [&](const char* name, int64_t in, int64_t out) {
    return PackStack(weights, {prefix + name}, weights.GetMatrix(prefix + name, {n, in, out}).transpose(1, 2));
  };
  parts.up = load("experts.gate_up_proj", t.hidden, 2 * t.intermediate);
  parts.down = load("experts.down_proj", t.intermediate, t.hidden);
  auto experts =
      std::make_unique<Experts>(Router::Load(weights, prefix + "router", t.hidden, c.router), std::move(parts),
                                Experts::Options{.activation = t.activation, .scale_input = true});
  experts->set_shared(LoadGatedMlp(weights, prefix + "shared_expert.", mlp));
  return experts;
}

}  // namespace

std::unique_ptr<Model> BuildLlama4(ConfigReader& config, WeightLoader& weights) {
  Llama4Config c = Read(config, weights);
  TransformerConfig& t = c.transformer;
  t.transform_attention_weights = [&](int layer, LoadedAttention* parts) {
    AttentionConfig* const attention = &parts->config;
    attention->chunk = c.chunks[layer];
    if (!c.rotates[layer]) {
      attention->position_scale = c.position_scale;
      attention->position_floor = c.position_floor;
      return;
    }
    SplitRotaryPairs(&parts->qkv, t.q_heads + t.kv_heads, t.head_dim);
    if (!c.qk_norm) return;
    parts->weights.q_norm = parts->weights.k_norm = UnitNorm(weights, t.head_dim, t.norm_eps);
    attention->norms_after_rotary = true;
  };
  t.load_mlp = [&](WeightLoader& loader, const std::string& layer, int index) {
    return LoadFeedForward(loader, layer + "feed_forward.", c, index);
  };
  return BuildTransformer(config, weights, t);
}

}  // namespace berth
