// What attention-based families share: the common fields of their configuration and the common names of their tensors.
// A family fills in what differs.
#ifndef BERTH_MODELS_FAMILIES_TRANSFORMER_H_
#define BERTH_MODELS_FAMILIES_TRANSFORMER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/checkpoint/json_config.h"
#include "models/checkpoint/weight_loader.h"
#include "models/layers/attention.h"
#include "models/layers/block.h"
#include "models/layers/decoder.h"
#include "models/layers/mlp.h"

namespace berth {

// Limits of configuration fields: far above any model, far below what overflows.
inline constexpr int64_t kMaxDimension = 1 << 20;
inline constexpr int64_t kMaxHeads = 1 << 14;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxVocabulary = 1 << 24;
inline constexpr int64_t kMaxWindow = int64_t{1} << 30;

// Where a block's norms stand.
enum class NormPlacement {
  kPre,   // before attention and feed-forward (llama)
  kPost,  // after each, before the sum (olmo3, exaone4)
  kBoth,  // before and after each (gemma)
};

// What norms of q and k go over.
enum class QkNorm { kNone, kHead, kProjection };

// What checkpoints call a part of attention.
struct AttentionNames {
  const char* output = "o_proj";
  const char* q_norm = "q_norm";
  const char* k_norm = "k_norm";
};

// A layer's attention before its products are packed.
struct LoadedAttention {
  AttentionConfig config;
  LinearWeights qkv, output;
  Attention::Weights weights;  // without those
};

struct TransformerConfig {
  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t num_layers = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double norm_eps = 1e-6;
  bool tied_head = false;
  bool may_lack_dense_mlp = false;  // of models of experts alone, which need no intermediate_size

  // What differs between families; 0 and false as in llama.
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool fused_projections = false;  // the checkpoint stores qkv_proj and gate_up_proj (phi3)
  bool output_gate = false;        // q_proj gives each head's q and the gate of its output (qwen3_next)
  AttentionNames attention_names;
  QkNorm qk_norm = QkNorm::kNone;  // q_norm, k_norm, before the rotation
  bool norm_adds_one = false;      // norms multiply by (1 + weight)
  bool layer_norm = false;         // norms subtract the mean (cohere2)
  NormPlacement norms = NormPlacement::kPre;
  bool parallel = false;   // attention and feed-forward side by side on one norm (cohere2)
  double score_scale = 0;  // 0: head_dim^-0.5
  double score_softcap = 0;
  double logit_softcap = 0;
  double logit_scale = 1;
  double embedding_scale = 1;
  int64_t rope_switch_length = 0;    // ModelInfo::rope_switch_length
  int64_t max_shareable_tokens = 0;  // ModelInfo::max_shareable_tokens
  ops::Activation activation = ops::Activation::kSilu;
  std::vector<int64_t> windows;                            // by layer; 0: none
  std::vector<std::shared_ptr<RotaryEmbedding>> rotaries;  // by layer; null: no positions
  // By layer: whose keys and values it reads instead of its own, -1: its own; empty: all their own.
  std::vector<int> kv_source_layers;
  std::function<void(int layer, LoadedAttention*)> transform_attention_weights;  // or {}: they stay as loaded
  // The feed-forward of a layer, whose names begin with `prefix`; {}: a dense gated one.
  std::function<std::unique_ptr<FeedForward>(WeightLoader&, const std::string& prefix, int layer)> load_mlp;
};

// Reads the first group of fields; errors stick to `config`. `absent` holds the family's defaults of absent fields. A 0
// there makes the field required, except for kv_heads (then q_heads) and head_dim (then hidden / q_heads).
TransformerConfig ReadTransformer(ConfigReader& config, const TransformerConfig& absent = {});

// Reads these fields, hidden_act, and one rotary embedding for all layers.
TransformerConfig ReadLlamaLike(ConfigReader& config, const WeightLoader& weights, double theta_by_default = 1e4,
                                double eps_by_default = 1e-6, bool may_lack_dense_mlp = false);

// For a model with a dense feed-forward: refuses a configuration without intermediate_size.
void RequireIntermediate(ConfigReader& config, const TransformerConfig& c);

// The activation under `key`; one that is not implemented is refused.
ops::Activation ReadActivation(ConfigReader& config, absl::string_view key, absl::string_view fallback);

// Reads layer_types. Each type must be in `known`. Absent: `fallback`.
std::vector<std::string> ReadLayerTypes(ConfigReader& config, int64_t num_layers,
                                        const std::vector<absl::string_view>& known, std::vector<std::string> fallback);

// Returns `full` for every `period`-th layer and `other` for the rest, which is what configurations without layer_types
// mean.
std::vector<std::string> PeriodicLayerTypes(int64_t num_layers, int64_t period, absl::string_view other,
                                            absl::string_view full = "full_attention");

// Returns sliding_window for the layers that layer_types calls "sliding_attention", 0 for "full_attention".
std::vector<int64_t> ReadWindows(ConfigReader& config, int64_t num_layers, int64_t window,
                                 std::vector<std::string> fallback);

// sliding_window where use_sliding_window is true; else, and where it is null, 0.
int64_t ReadUsedWindow(ConfigReader& config);

// sliding_window. Absent means the family's default, an explicit null 0, no window.
int64_t ReadWindow(ConfigReader& config, int64_t fallback);

// The window of every layer, by ReadWindow.
void ReadOneWindow(ConfigReader& config, int64_t fallback, TransformerConfig* c);

// Reads no_rope_layers, where 1 means that a layer rotates (sic). Absent: every no_rope_layer_interval-th does not.
std::vector<bool> ReadRotatingLayers(ConfigReader& config, int64_t num_layers);

// Every decoder_sparse_step-th layer has experts, except those of mlp_only_layers.
std::vector<bool> ReadSparseLayers(ConfigReader& config, int64_t num_layers);

// Reads num_experts_per_tok, or `fallback`, which may not be more than there are experts either.
int64_t ReadTopK(ConfigReader& config, int64_t fallback, int64_t num_experts);

// Makes one rotary embedding for all layers that are true in `rotates` (empty: all).
void ReadSharedRotary(ConfigReader& config, const WeightLoader& weights, const RopeFields& fields,
                      const std::vector<bool>& rotates, TransformerConfig* c);

// Makes one rotary embedding for the full layers and one for the sliding ones. `full` and `sliding` need neither
// layer_type nor types.
void ReadRotaryByType(ConfigReader& config, const WeightLoader& weights, RopeFields full, RopeFields sliding,
                      TransformerConfig* c);

// Reorders each head's rows of a product, the first `heads` heads of it, from pairs side by side (cohere2, llama4) to
// halves, as the rotary kernel pairs them. Scores stay the same: q and k are reordered alike.
void SplitRotaryPairs(LinearWeights* qkv, int64_t heads, int64_t head_dim);

// sqrt(hidden), rounded to the embedding's type as the reference rounds it (gemma).
double SqrtEmbeddingScale(int64_t hidden, DType dtype);

// `prefix`q_proj, k_proj, v_proj, o_proj (or the fused ones), q_norm, k_norm.
std::unique_ptr<Attention> LoadAttention(WeightLoader& weights, const std::string& prefix, const TransformerConfig& c,
                                         int layer);

// The feed-forward of `c`, dense.
std::unique_ptr<FeedForward> LoadDenseMlp(WeightLoader& weights, const std::string& prefix, const TransformerConfig& c);

// Loads a norm of the kind that `c` uses. `name` is without ".weight".
Norm LoadNormOf(WeightLoader& weights, const std::string& name, const TransformerConfig& c);

// The parts around the layers: `embed_name`, the final norm under `norm_name` (both without ".weight"), lm_head or the
// tied embedding.
DecoderModel::Parts LoadEmbeddingAndHead(WeightLoader& weights, const TransformerConfig& c,
                                         const std::string& norm_name,
                                         const std::string& embed_name = "model.embed_tokens");

// A mixer, a feed-forward and their norms, by llama's names; either may be null.
std::unique_ptr<Block> LoadBlock(WeightLoader& weights, const std::string& prefix, const TransformerConfig& c,
                                 std::unique_ptr<Mixer> mixer, std::unique_ptr<FeedForward> mlp);

// The whole model, or null after an error.
std::unique_ptr<Model> BuildTransformer(const ConfigReader& config, WeightLoader& weights, const TransformerConfig& c);

}  // namespace berth

#endif  // BERTH_MODELS_FAMILIES_TRANSFORMER_H_
