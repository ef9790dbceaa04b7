// llama, and what is llama by configuration: mistral (a window on every layer), qwen2 (biases on q, k, v), qwen3 (norms
// of q and k). Source: transformers' models/{llama,mistral,qwen2,qwen3}.
#include "models/families/family.h"
#include "models/families/transformer.h"

namespace berth {
namespace {

TransformerConfig ReadCommon(ConfigReader& config, const WeightLoader& weights) {
  TransformerConfig c = ReadTransformer(config, /*tied_by_default=*/false);
  config.RefuseUnless("hidden_act", "silu");
  const RopeConfig rope = ReadRope(config, {.types = RotaryTypes()});
  if (config.status().ok()) {
    c.rotaries.assign(c.num_layers, std::make_shared<RotaryEmbedding>(rope, c.head_dim, weights.options().device));
  }
  return c;
}

std::unique_ptr<DecoderModel> Build(const ConfigReader& config, WeightLoader& weights, const TransformerConfig& c) {
  return config.status().ok() ? BuildTransformer(weights, c) : nullptr;
}

// qwen2 and qwen3: only the layers from max_window_layers on may slide, and only where use_sliding_window says so.
void ReadQwenWindows(ConfigReader& config, TransformerConfig* c) {
  const bool sliding = config.BoolOr("use_sliding_window", false);
  const int64_t window = sliding ? config.IntOr("sliding_window", 4096, 1, int64_t{1} << 40) : 0;
  const int64_t first = config.IntOr("max_window_layers", 28, 0, kMaxLayers);
  std::vector<int64_t> fallback(c->num_layers, 0);
  for (int64_t i = first; i < c->num_layers; ++i) fallback[i] = window;
  c->windows = ReadWindows(config, c->num_layers, window, fallback);
}

}  // namespace

std::unique_ptr<DecoderModel> BuildLlama(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadCommon(config, weights);
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.mlp_bias = config.BoolOr("mlp_bias", false);
  return Build(config, weights, c);
}

std::unique_ptr<DecoderModel> BuildMistral(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadCommon(config, weights);
  // Absent means the class's default; an explicit null means no window.
  const int64_t window =
      config.IsNull("sliding_window") ? 0 : config.IntOr("sliding_window", 4096, 1, int64_t{1} << 40);
  c.windows.assign(c.num_layers, window);
  return Build(config, weights, c);
}

std::unique_ptr<DecoderModel> BuildQwen2(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadCommon(config, weights);
  c.qkv_bias = true;
  ReadQwenWindows(config, &c);
  return Build(config, weights, c);
}

std::unique_ptr<DecoderModel> BuildQwen3(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadCommon(config, weights);
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.qk_norm = true;
  ReadQwenWindows(config, &c);
  return Build(config, weights, c);
}

}  // namespace berth
