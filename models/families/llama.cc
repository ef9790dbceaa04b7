// llama, and the models that differ from it by configuration only. They are:
// - mistral and ministral: optionally a window, on every layer or on those that layer_types names;
// - phi3: optionally a window on every layer, fused products, and partial and "longrope" positions;
// - qwen2: biases on q, k and v;
// - qwen3: norms of q and k;
// - smollm3: some layers without positions.
// Source: transformers' models/{llama,mistral,ministral,phi3,qwen2,qwen3,smollm3}.
#include <utility>

#include "models/families/family.h"
#include "models/families/transformer.h"

namespace berth {
namespace {

// qwen2 and qwen3: only the layers from max_window_layers on may slide, and only where use_sliding_window says so.
void ReadQwenWindows(ConfigReader& config, TransformerConfig* c) {
  const int64_t window = ReadUsedWindow(config);
  const bool sliding = window > 0;
  const int64_t first = config.IntOr("max_window_layers", 28, 0, kMaxLayers);
  std::vector<std::string> types(c->num_layers, "full_attention");
  for (int64_t i = first; i < c->num_layers && sliding; ++i) types[i] = "sliding_attention";
  c->windows = ReadWindows(config, c->num_layers, window, std::move(types));
}

}  // namespace

std::unique_ptr<Model> BuildLlama(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadLlamaLike(config, weights);
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.mlp_bias = config.BoolOr("mlp_bias", false);
  return BuildTransformer(config, weights, c);
}

std::unique_ptr<Model> BuildMistral(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadLlamaLike(config, weights);
  const int64_t window = ReadWindow(config, 4096);
  const char* const type = window > 0 ? "sliding_attention" : "full_attention";
  c.windows = ReadWindows(config, c.num_layers, window, std::vector<std::string>(c.num_layers, type));
  return BuildTransformer(config, weights, c);
}

std::unique_ptr<Model> BuildQwen2(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadLlamaLike(config, weights);
  c.qkv_bias = true;
  ReadQwenWindows(config, &c);
  return BuildTransformer(config, weights, c);
}

std::unique_ptr<Model> BuildQwen3(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadLlamaLike(config, weights);
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.qk_norm = QkNorm::kHead;
  ReadQwenWindows(config, &c);
  return BuildTransformer(config, weights, c);
}

std::unique_ptr<Model> BuildPhi3(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadTransformer(config, {.norm_eps = 1e-5});
  c.activation = ReadActivation(config, "hidden_act", "silu");
  c.fused_projections = true;
  ReadOneWindow(config, 0, &c);
  const RopeFields fields = {.rotates_partly = true,
                             .default_trained_length = 4096,
                             .types = {"default", "longrope"},
                             .longrope_names = {"su", "yarn"}};
  ReadSharedRotary(config, weights, fields, {}, &c);
  const RopeConfig rope = ReadRope(config, fields);
  if (rope.type == "longrope") c.rope_switch_length = rope.original_max_positions;
  return BuildTransformer(config, weights, c);
}

std::unique_ptr<Model> BuildSmolLm3(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadTransformer(config, {.tied_head = true});
  c.activation = ReadActivation(config, "hidden_act", "silu");
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.mlp_bias = config.BoolOr("mlp_bias", false);
  const std::vector<bool> rotates = ReadRotatingLayers(config, c.num_layers);
  ReadSharedRotary(config, weights, {.default_theta = 2e6, .types = RotaryTypes()}, rotates, &c);
  const bool sliding = config.BoolOr("use_sliding_window", false);
  const int64_t window = config.IntOr("sliding_window", 0, 0, kMaxWindow);
  std::vector<std::string> types(c.num_layers, "full_attention");
  for (int64_t i = 0; i < c.num_layers && sliding && window > 0; ++i) {
    if (!rotates[i]) types[i] = "sliding_attention";
  }
  c.windows = ReadWindows(config, c.num_layers, window, std::move(types));
  return BuildTransformer(config, weights, c);
}

}  // namespace berth
