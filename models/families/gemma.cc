// gemma2 and gemma3's text model. Both have sliding and full layers, norms that multiply by (1 + weight) before and
// after each half, and a scaled embedding. Soft caps are gemma2's; norms of q and k, and a rotary base for each layer
// type, are gemma3's. Source: transformers' models/{gemma2,gemma3}.
#include <cmath>

#include "models/families/family.h"
#include "models/families/transformer.h"

namespace berth {
namespace {

TransformerConfig ReadGemma(ConfigReader& config, const WeightLoader& weights, int64_t default_vocab_size) {
  // Multimodal checkpoints leave out of text_config what is the class's default.
  TransformerConfig c = ReadTransformer(config, {.vocab_size = default_vocab_size,
                                                 .hidden = 2304,
                                                 .intermediate = 9216,
                                                 .num_layers = 26,
                                                 .q_heads = 8,
                                                 .kv_heads = 4,
                                                 .head_dim = 256,
                                                 .tied_head = true});
  c.activation = ReadActivation(config, "hidden_activation", "gelu_pytorch_tanh");
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.norm_adds_one = true;
  c.norms = NormPlacement::kBoth;
  c.score_scale = 1 / std::sqrt(config.DoubleOr("query_pre_attn_scalar", 256, 1e-6, 1e9));
  c.embedding_scale = SqrtEmbeddingScale(c.hidden, weights.options().dtype);
  return c;
}

// Configurations older than layer_types: every `period`-th layer is full.
void ReadGemmaWindows(ConfigReader& config, int64_t period, TransformerConfig* c) {
  const int64_t window = config.IntOr("sliding_window", 4096, 1, kMaxWindow);
  c->windows =
      ReadWindows(config, c->num_layers, window, PeriodicLayerTypes(c->num_layers, period, "sliding_attention"));
}

}  // namespace

std::unique_ptr<Model> BuildGemma2(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadGemma(config, weights, 256000);
  config.RefuseUnless("use_bidirectional_attention", false);
  c.score_softcap = config.IsNull("attn_logit_softcapping") ? 0 : config.DoubleOr("attn_logit_softcapping", 50, 0, 1e9);
  c.logit_softcap =
      config.IsNull("final_logit_softcapping") ? 0 : config.DoubleOr("final_logit_softcapping", 30, 0, 1e9);
  ReadGemmaWindows(config, 2, &c);
  ReadSharedRotary(config, weights, {.types = RotaryTypes()}, {}, &c);
  return BuildTransformer(config, weights, c);
}

std::unique_ptr<Model> BuildGemma3(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadGemma(config, weights, 262208);
  config.RefuseUnless("use_bidirectional_attention", false);
  c.qk_norm = QkNorm::kHead;
  // attn_logit_softcapping is in the configuration but not in the reference's attention: gemma2's, not gemma3's.
  c.logit_softcap = config.DoubleOr("final_logit_softcapping", 0, 0, 1e9);
  ReadGemmaWindows(config, config.IntOr("sliding_window_pattern", 6, 1, kMaxLayers), &c);
  ReadRotaryByType(config, weights, {.default_theta = 1e6},
                   {.default_theta = 1e4, .theta_key = "rope_local_base_freq", .use_rope_scaling = false}, &c);
  return BuildTransformer(config, weights, c);
}

}  // namespace berth
