// What the attention-only families share: the common fields of their configuration and the common names of their
// tensors. A family fills in what differs.
#ifndef BERTH_MODELS_FAMILIES_TRANSFORMER_H_
#define BERTH_MODELS_FAMILIES_TRANSFORMER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/layers/decoder.h"
#include "models/weights/json_config.h"
#include "models/weights/weight_loader.h"

namespace berth {

// Limits of configuration fields: far above any model, far below what overflows.
inline constexpr int64_t kMaxDimension = 1 << 20;
inline constexpr int64_t kMaxHeads = 1 << 14;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxVocabulary = 1 << 24;

struct TransformerConfig {
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t num_layers = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double norm_eps = 0;
  bool tied_head = false;

  // What differs between families; 0 and false as in llama.
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;        // q_norm, k_norm over head_dim, before the rotation
  bool norm_adds_one = false;  // norms multiply by (1 + weight)
  bool post_norms = false;     // gemma's four norms per layer
  double score_scale = 0;      // 0: head_dim^-0.5
  double score_softcap = 0;
  double logit_softcap = 0;
  double embedding_scale = 1;
  ops::Activation activation = ops::Activation::kSilu;
  std::vector<int64_t> windows;                            // by layer; 0: none
  std::vector<std::shared_ptr<RotaryEmbedding>> rotaries;  // by layer
};

// Reads the first group of fields; errors stick to `config`.
TransformerConfig ReadTransformer(ConfigReader& config, bool tied_by_default);

// Windows by layer from layer_types ("full_attention", "sliding_attention"), else `fallback`. Other types are refused.
std::vector<int64_t> ReadWindows(ConfigReader& config, int64_t num_layers, int64_t window,
                                 const std::vector<int64_t>& fallback);

// A norm's weight as the kernels want it: float32, the one added where the model says so.
RmsNorm LoadNorm(WeightLoader& weights, const std::string& name, int64_t dim, double eps, bool adds_one = false);

// The parts around the layers: embed_tokens, the final norm under `norm_name`, lm_head or the tied embedding.
DecoderModel::Parts LoadEnds(WeightLoader& weights, const TransformerConfig& config, const std::string& norm_name);

// The whole model. REQUIRES: no error so far.
std::unique_ptr<DecoderModel> BuildTransformer(WeightLoader& weights, const TransformerConfig& config);

}  // namespace berth

#endif  // BERTH_MODELS_FAMILIES_TRANSFORMER_H_
