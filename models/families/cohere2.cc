// cohere2: attention and feed-forward side by side on one layer norm, rotary positions of neighbouring pairs on sliding
// layers only, scaled logits. Source: transformers' models/cohere2.
#include "models/families/family.h"
#include "models/families/transformer.h"

namespace berth {

std::unique_ptr<Model> BuildCohere2(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadTransformer(config, {.tied_head = true});
  c.norm_eps = config.DoubleOr("layer_norm_eps", 1e-5, 0, 1);
  c.activation = ReadActivation(config, "hidden_act", "silu");
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.layer_norm = c.parallel = true;
  c.logit_scale = config.DoubleOr("logit_scale", 0.0625);
  config.RefuseUnless("use_qk_norm", false);
  const int64_t window = config.IntOr("sliding_window", 4096, 1, kMaxWindow);
  const int64_t period = config.IntOr("sliding_window_pattern", 4, 1, kMaxLayers);
  c.windows = ReadWindows(config, c.num_layers, window, PeriodicLayerTypes(c.num_layers, period, "sliding_attention"));
  std::vector<bool> rotates;
  for (int64_t layer_window : c.windows) rotates.push_back(layer_window > 0);
  ReadSharedRotary(config, weights, {.types = RotaryTypes()}, rotates, &c);
  c.transform_attention_weights = [&](int, LoadedAttention* parts) {
    SplitRotaryPairs(&parts->qkv, parts->config.q_heads + parts->config.kv_heads, parts->config.head_dim);
  };
  return BuildTransformer(config, weights, c);
}

}  // namespace berth
