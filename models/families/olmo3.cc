// olmo3 and exaone4: norms after attention and feed-forward instead of before, norms of q and k, sliding layers between
// full ones. Source: transformers' models/{olmo3,exaone4}.
#include <utility>

#include "models/families/family.h"
#include "models/families/transformer.h"

namespace berth {

std::unique_ptr<Model> BuildOlmo3(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadTransformer(config, {.norm_eps = 1e-5});
  c.activation = ReadActivation(config, "hidden_act", "silu");
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.qk_norm = QkNorm::kProjection;
  c.norms = NormPlacement::kPost;
  const int64_t window = config.IntOr("sliding_window", 4096, 1, kMaxWindow);
  c.windows = ReadWindows(config, c.num_layers, window, PeriodicLayerTypes(c.num_layers, 4, "sliding_attention"));
  const double theta = 5e5;
  ReadRotaryByType(config, weights, {.default_theta = theta}, {.default_theta = theta, .use_rope_scaling = false}, &c);
  return BuildTransformer(config, weights, c);
}

std::unique_ptr<Model> BuildExaone4(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadTransformer(config, {.norm_eps = 1e-5});
  c.activation = ReadActivation(config, "hidden_act", "silu");
  c.qk_norm = QkNorm::kHead;
  c.norms = NormPlacement::kPost;
  const bool no_window = config.IsNull("sliding_window");
  const int64_t window = no_window ? 0 : config.IntOr("sliding_window", 4096, 1, kMaxWindow);
  std::vector<std::string> types(c.num_layers, "full_attention");
  if (!no_window && !config.Has("layer_types")) {
    types =
        PeriodicLayerTypes(c.num_layers, config.IntOr("sliding_window_pattern", 4, 1, kMaxLayers), "sliding_attention");
  }
  c.windows = ReadWindows(config, c.num_layers, window, std::move(types));
  // Where some layers slide, the full ones have no positions.
  std::vector<bool> rotates(c.num_layers, no_window);
  for (int64_t i = 0; i < c.num_layers; ++i) rotates[i] = no_window || c.windows[i] > 0;
  ReadSharedRotary(config, weights, {.types = RotaryTypes()}, rotates, &c);
  return BuildTransformer(config, weights, c);
}

}  // namespace berth
