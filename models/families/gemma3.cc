// gemma3's text model: sliding and full layers with their own rotary bases, norms that multiply by (1 + weight) before
// and after each half, norms of q and k, a scaled embedding. Source: transformers' models/gemma3.
#include <ATen/ops/tensor.h>

#include <cmath>

#include "models/families/family.h"
#include "models/families/transformer.h"

namespace berth {
namespace {

// sqrt(hidden), rounded to the embedding's type as the reference rounds it.
double EmbeddingScale(int64_t hidden, DType dtype) {
  const float scale = std::sqrt(static_cast<float>(hidden));
  if (dtype == DType::kFloat32) return scale;
  return at::tensor(scale).to(at::kBFloat16).to(at::kFloat).item<float>();
}

// Configurations older than layer_types: every sliding_window_pattern-th layer is full.
std::vector<int64_t> PatternWindows(ConfigReader& config, int64_t num_layers, int64_t window) {
  const int64_t pattern = config.IntOr("sliding_window_pattern", 6, 1, kMaxLayers);
  std::vector<int64_t> windows(num_layers, window);
  for (int64_t i = pattern - 1; i < num_layers; i += pattern) windows[i] = 0;
  return windows;
}

void ReadRotaries(ConfigReader& config, const WeightLoader& weights, TransformerConfig* c) {
  const RopeConfig full =
      ReadRope(config, {.default_theta = 1e6, .layer_type = "full_attention", .types = RotaryTypes()});
  const RopeConfig sliding = ReadRope(config, {.default_theta = 1e4,
                                               .layer_type = "sliding_attention",
                                               .theta_key = "rope_local_base_freq",
                                               .use_rope_scaling = false,
                                               .types = RotaryTypes()});
  if (!config.status().ok()) return;
  const at::Device device = weights.options().device;
  const auto full_rotary = std::make_shared<RotaryEmbedding>(full, c->head_dim, device);
  const auto sliding_rotary = std::make_shared<RotaryEmbedding>(sliding, c->head_dim, device);
  for (int64_t window : c->windows) c->rotaries.push_back(window > 0 ? sliding_rotary : full_rotary);
}

}  // namespace

std::unique_ptr<DecoderModel> BuildGemma3(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadTransformer(config, /*tied_by_default=*/true);
  config.RefuseUnless("hidden_activation", "gelu_pytorch_tanh");
  config.RefuseUnless("use_bidirectional_attention", false);
  if (!config.Has("head_dim")) c.head_dim = 256;
  c.activation = ops::Activation::kGeluTanh;
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.qk_norm = c.norm_adds_one = c.post_norms = true;
  c.score_scale = 1 / std::sqrt(config.DoubleOr("query_pre_attn_scalar", 256, 1e-6, 1e9));
  // attn_logit_softcapping is in the configuration but not in the reference's attention: gemma2's, not gemma3's.
  c.logit_softcap = config.DoubleOr("final_logit_softcapping", 0, 0, 1e9);
  c.embedding_scale = EmbeddingScale(c.hidden, weights.options().dtype);
  const int64_t window = config.IntOr("sliding_window", 4096, 1, int64_t{1} << 40);
  c.windows = ReadWindows(config, c.num_layers, window, PatternWindows(config, c.num_layers, window));
  ReadRotaries(config, weights, &c);
  return config.status().ok() ? BuildTransformer(weights, c) : nullptr;
}

}  // namespace berth
