#include "models/families/transformer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

LinearWeights LoadQkv(WeightLoader& weights, const std::string& prefix, const TransformerConfig& c, bool borrows) {
  const int64_t q_columns = c.q_heads * c.head_dim;
  const int64_t kv_columns = c.kv_heads * c.head_dim;
  if (borrows) {
    // Published checkpoints still contain these layers' own projections, which nothing uses.
    for (const char* name : {"k_proj", "v_proj", "k_norm", "v_norm"}) weights.IgnoreUnder(prefix + name);
    return LoadLinear(weights, c.hidden, {{.name = prefix + "q_proj", .out = q_columns, .has_bias = c.qkv_bias}});
  }
  if (c.fused_projections) {
    return LoadLinear(weights, c.hidden,
                      {{.name = prefix + "qkv_proj", .out = q_columns + 2 * kv_columns, .has_bias = c.qkv_bias}});
  }
  return LoadLinear(weights, c.hidden,
                    {{.name = prefix + "q_proj", .out = q_columns, .has_bias = c.qkv_bias},
                     {.name = prefix + "k_proj", .out = kv_columns, .has_bias = c.qkv_bias},
                     {.name = prefix + "v_proj", .out = kv_columns, .has_bias = c.qkv_bias}});
}

// q, k, v and the gate side by side, from a q_proj whose rows go head by head: q, then the gate.
LinearWeights LoadGatedQkv(WeightLoader& weights, const std::string& prefix, const TransformerConfig& c) {
  const int64_t kv_columns = c.kv_heads * c.head_dim;
  const LinearWeights q = LoadLinear(
      weights, c.hidden, {{.name = prefix + "q_proj", .out = 2 * c.q_heads * c.head_dim, .has_bias = c.qkv_bias}});
  const LinearWeights kv = LoadLinear(weights, c.hidden,
                                      {{.name = prefix + "k_proj", .out = kv_columns, .has_bias = c.qkv_bias},
                                       {.name = prefix + "v_proj", .out = kv_columns, .has_bias = c.qkv_bias}});
  const auto join = [&](const at::Tensor& q_rows, const at::Tensor& kv_rows) {
    const at::Tensor heads = q_rows.unflatten(0, {c.q_heads, 2, c.head_dim});
    return at::cat({heads.select(1, 0).flatten(0, 1), kv_rows, heads.select(1, 1).flatten(0, 1)}, 0);
  };
  LinearWeights qkv = q;
  qkv.name = absl::StrCat(q.name, "+", kv.name);
  qkv.weight = join(q.weight, kv.weight);
  if (c.qkv_bias) qkv.bias = join(q.bias, kv.bias);
  return qkv;
}

// The positions of heads of `head_dim`; null after an error.
std::shared_ptr<RotaryEmbedding> MakeRotary(ConfigReader& config, const RopeConfig& rope, int64_t head_dim,
                                            const WeightLoader& weights) {
  const auto rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
  // transformers rounds an odd number of dimensions up to pairs, if the head has room for it.
  const int64_t pairs = (rotary_dim + 1) / 2;
  config.Require(2 * pairs <= head_dim && (rope.type != "yarn" || rotary_dim % 2 == 0), "partial_rotary_factor",
                 absl::StrCat("makes ", rotary_dim, " of a head's ", head_dim, " dimensions rotate, an odd number"));
  const auto factors = static_cast<size_t>(pairs);
  config.Require(rope.type != "longrope" || (rope.short_factor.size() == factors && rope.long_factor.size() == factors),
                 config.Has("rope_scaling") ? "rope_scaling" : "rope_parameters",
                 absl::StrCat("has ", rope.short_factor.size(), " short factors and ", rope.long_factor.size(),
                              " long ones; half the rotated dimensions is ", factors));
  if (!config.status().ok()) return nullptr;
  return std::make_shared<RotaryEmbedding>(rope, head_dim, weights.options().device);
}

}  // namespace

TransformerConfig ReadTransformer(ConfigReader& config, const TransformerConfig& absent) {
  const auto size = [&](absl::string_view key, int64_t fallback, int64_t max) {
    return fallback > 0 ? config.IntOr(key, fallback, 1, max) : config.Int(key, 1, max);
  };
  TransformerConfig c;
  c.vocab_size = size("vocab_size", absent.vocab_size, kMaxVocabulary);
  c.hidden = size("hidden_size", absent.hidden, kMaxDimension);
  // gemma3n has a list of them.
  const std::vector<int64_t> intermediate = config.IntOrIntList("intermediate_size", 1, kMaxDimension);
  c.intermediate = intermediate.empty() ? absent.intermediate : intermediate.front();
  if (!absent.may_lack_dense_mlp) RequireIntermediate(config, c);
  c.num_layers = size("num_hidden_layers", absent.num_layers, kMaxLayers);
  c.q_heads = size("num_attention_heads", absent.q_heads, kMaxHeads);
  c.kv_heads = size("num_key_value_heads", absent.kv_heads > 0 ? absent.kv_heads : c.q_heads, kMaxHeads);
  config.Require(c.q_heads % c.kv_heads == 0, "num_attention_heads", "is not a multiple of num_key_value_heads");
  c.head_dim = config.IntOr("head_dim", absent.head_dim > 0 ? absent.head_dim : c.hidden / c.q_heads, 1, kMaxDimension);
  config.Require(c.head_dim > 0 && c.head_dim % 2 == 0, config.Has("head_dim") ? "head_dim" : "hidden_size",
                 "gives heads of an odd dimension, which rotary positions cannot pair");
  c.norm_eps = config.DoubleOr("rms_norm_eps", absent.norm_eps, 0, 1);
  c.tied_head = config.BoolOr("tie_word_embeddings", absent.tied_head);
  c.windows.assign(c.num_layers, 0);
  c.rotaries.resize(c.num_layers);
  return c;
}

void RequireIntermediate(ConfigReader& config, const TransformerConfig& c) {
  config.Require(c.intermediate > 0, "intermediate_size", "is missing");
}

TransformerConfig ReadLlamaLike(ConfigReader& config, const WeightLoader& weights, double theta_by_default,
                                double eps_by_default, bool may_lack_dense_mlp) {
  TransformerConfig c = ReadTransformer(config, {.norm_eps = eps_by_default, .may_lack_dense_mlp = may_lack_dense_mlp});
  c.activation = ReadActivation(config, "hidden_act", "silu");
  ReadSharedRotary(config, weights, {.default_theta = theta_by_default, .types = RotaryTypes()}, {}, &c);
  return c;
}

ops::Activation ReadActivation(ConfigReader& config, absl::string_view key, absl::string_view fallback) {
  const std::string name = config.StringOr(key, fallback);
  if (name == "silu" || name == "swish") return ops::Activation::kSilu;
  if (name == "gelu") return ops::Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return ops::Activation::kGeluTanh;
  if (name == "relu") return ops::Activation::kRelu;
  if (name == "relu2") return ops::Activation::kReluSquared;
  config.RefuseUnless(key, "silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2");
  return ops::Activation::kSilu;
}

std::vector<std::string> ReadLayerTypes(ConfigReader& config, int64_t num_layers,
                                        const std::vector<absl::string_view>& known,
                                        std::vector<std::string> fallback) {
  std::vector<std::string> types = config.StringListOr("layer_types", std::move(fallback));
  config.Require(static_cast<int64_t>(types.size()) == num_layers, "layer_types",
                 absl::StrCat("has ", types.size(), " entries, not num_hidden_layers, ", num_layers));
  for (const std::string& type : types) {
    const bool is_known = std::find(known.begin(), known.end(), type) != known.end();
    config.Require(is_known, "layer_types",
                   absl::StrCat("holds \"", type, "\", which this architecture does not have"));
  }
  types.resize(num_layers);
  return types;
}

std::vector<std::string> PeriodicLayerTypes(int64_t num_layers, int64_t period, absl::string_view other,
                                            absl::string_view full) {
  std::vector<std::string> types(num_layers, std::string(other));
  for (int64_t i = period - 1; i < num_layers; i += period) types[i] = std::string(full);
  return types;
}

std::vector<int64_t> ReadWindows(ConfigReader& config, int64_t num_layers, int64_t window,
                                 std::vector<std::string> fallback) {
  const std::vector<std::string> types =
      ReadLayerTypes(config, num_layers, {"full_attention", "sliding_attention"}, std::move(fallback));
  std::vector<int64_t> windows;
  for (const std::string& type : types) {
    const bool sliding = type == "sliding_attention";
    config.Require(!sliding || window > 0, "sliding_window", "is needed by layer_types");
    windows.push_back(sliding ? window : 0);
  }
  return windows;
}

int64_t ReadUsedWindow(ConfigReader& config) {
  const bool used = config.BoolOr("use_sliding_window", false) && !config.IsNull("sliding_window");
  return used ? config.IntOr("sliding_window", 4096, 1, kMaxWindow) : 0;
}

int64_t ReadWindow(ConfigReader& config, int64_t fallback) {
  return config.IsNull("sliding_window") ? 0 : config.IntOr("sliding_window", fallback, 0, kMaxWindow);
}

void ReadOneWindow(ConfigReader& config, int64_t fallback, TransformerConfig* c) {
  c->windows.assign(c->num_layers, ReadWindow(config, fallback));
}

std::vector<bool> ReadRotatingLayers(ConfigReader& config, int64_t num_layers) {
  const int64_t interval = config.IntOr("no_rope_layer_interval", 4, 1, kMaxLayers);
  std::vector<bool> rotates(num_layers);
  for (int64_t i = 0; i < num_layers; ++i) rotates[i] = (i + 1) % interval != 0;
  const std::vector<int64_t> given = config.IntListOr("no_rope_layers", {}, 0, 1);
  config.Require(given.empty() || static_cast<int64_t>(given.size()) >= num_layers, "no_rope_layers",
                 "has fewer than num_hidden_layers entries");
  for (size_t i = 0; i < given.size() && i < rotates.size(); ++i) rotates[i] = given[i] != 0;
  return rotates;
}

std::vector<bool> ReadSparseLayers(ConfigReader& config, int64_t num_layers) {
  const int64_t step = config.IntOr("decoder_sparse_step", 1, 1, kMaxLayers);
  const std::vector<int64_t> dense = config.IntListOr("mlp_only_layers", {}, 0, kMaxLayers);
  std::vector<bool> sparse(num_layers);
  for (int64_t i = 0; i < num_layers; ++i) {
    sparse[i] = (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
  }
  return sparse;
}

int64_t ReadTopK(ConfigReader& config, int64_t fallback, int64_t num_experts) {
  const int64_t top_k = config.IntOr("num_experts_per_tok", fallback, 1, num_experts);
  config.Require(top_k <= num_experts, "num_experts_per_tok",
                 absl::StrCat("means ", top_k, " by default, of ", num_experts, " experts"));
  return std::min(top_k, num_experts);
}

void ReadSharedRotary(ConfigReader& config, const WeightLoader& weights, const RopeFields& fields,
                      const std::vector<bool>& rotates, TransformerConfig* c) {
  const auto rotary = MakeRotary(config, ReadRope(config, fields), c->head_dim, weights);
  if (rotary == nullptr) return;
  c->max_shareable_tokens = rotary->length_invariant_until();
  for (int64_t i = 0; i < c->num_layers; ++i) {
    if (rotates.empty() || rotates[i]) c->rotaries[i] = rotary;
  }
}

void ReadRotaryByType(ConfigReader& config, const WeightLoader& weights, RopeFields full, RopeFields sliding,
                      TransformerConfig* c) {
  full.layer_type = "full_attention";
  sliding.layer_type = "sliding_attention";
  full.types = sliding.types = RotaryTypes();
  const auto full_rotary = MakeRotary(config, ReadRope(config, full), c->head_dim, weights);
  const auto sliding_rotary = MakeRotary(config, ReadRope(config, sliding), c->head_dim, weights);
  if (full_rotary == nullptr || sliding_rotary == nullptr) return;
  c->max_shareable_tokens = std::max(full_rotary->length_invariant_until(), sliding_rotary->length_invariant_until());
  for (int64_t i = 0; i < c->num_layers; ++i) c->rotaries[i] = c->windows[i] > 0 ? sliding_rotary : full_rotary;
}

void SplitRotaryPairs(LinearWeights* qkv, int64_t heads, int64_t head_dim) {
  const auto reorder = [&](const at::Tensor& rows) {
    const at::Tensor pairs = rows.narrow(0, 0, heads * head_dim).reshape({heads, head_dim / 2, 2, -1});
    const at::Tensor halves = pairs.transpose(1, 2).reshape({heads * head_dim, -1});
    const at::Tensor rest = rows.narrow(0, heads * head_dim, rows.size(0) - heads * head_dim);
    return at::cat({halves.view_as(rows.narrow(0, 0, heads * head_dim)), rest});
  };
  qkv->weight = reorder(qkv->weight);
  if (qkv->bias.defined()) qkv->bias = reorder(qkv->bias);
}

double SqrtEmbeddingScale(int64_t hidden, DType dtype) {
  const float scale = std::sqrt(static_cast<float>(hidden));
  if (dtype == DType::kFloat32) return scale;
  return at::tensor(scale).to(at::kBFloat16).to(at::kFloat).item<float>();
}

std::unique_ptr<Attention> LoadAttention(WeightLoader& weights, const std::string& prefix, const TransformerConfig& c,
                                         int layer) {
  LoadedAttention loaded;
  const int lender = c.kv_source_layers.empty() ? -1 : c.kv_source_layers[layer];
  loaded.qkv = c.output_gate ? LoadGatedQkv(weights, prefix, c) : LoadQkv(weights, prefix, c, lender >= 0);
  loaded.output = LoadLinear(weights, c.q_heads * c.head_dim,
                             {{.name = prefix + c.attention_names.output, .out = c.hidden, .has_bias = c.output_bias}});
  Attention::Weights& parts = loaded.weights;
  if (c.qk_norm != QkNorm::kNone) {
    const bool whole = c.qk_norm == QkNorm::kProjection;
    const int64_t q_dim = whole ? c.q_heads * c.head_dim : c.head_dim;
    const int64_t k_dim = whole ? c.kv_heads * c.head_dim : c.head_dim;
    parts.q_norm = LoadNorm(weights, absl::StrCat(prefix, c.attention_names.q_norm, ".weight"), q_dim, c.norm_eps,
                            c.norm_adds_one);
    if (lender < 0)
      parts.k_norm = LoadNorm(weights, absl::StrCat(prefix, c.attention_names.k_norm, ".weight"), k_dim, c.norm_eps,
                              c.norm_adds_one);
  }
  parts.rotary = c.rotaries[layer];
  loaded.config = {.layer = layer,
                   .q_heads = c.q_heads,
                   .kv_heads = c.kv_heads,
                   .head_dim = c.head_dim,
                   .window = c.windows[layer],
                   .scale = c.score_scale != 0 ? c.score_scale : 1 / std::sqrt(static_cast<double>(c.head_dim)),
                   .softcap = c.score_softcap,
                   .kv_source_layer = lender,
                   .output_gate = c.output_gate};
  if (c.transform_attention_weights) c.transform_attention_weights(layer, &loaded);
  parts.qkv = loaded.qkv;
  parts.output = loaded.output;
  return std::make_unique<Attention>(loaded.config, std::move(parts));
}

std::unique_ptr<FeedForward> LoadDenseMlp(WeightLoader& weights, const std::string& prefix,
                                          const TransformerConfig& c) {
  const MlpConfig config = {
      .hidden = c.hidden, .intermediate = c.intermediate, .bias = c.mlp_bias, .activation = c.activation};
  if (!c.fused_projections) return LoadGatedMlp(weights, prefix, config);
  auto mlp = std::make_unique<GatedMlp>();
  mlp->gate_up = LoadLinear(weights, c.hidden, {{.name = prefix + "gate_up_proj", .out = 2 * c.intermediate}});
  mlp->down = LoadLinear(weights, c.intermediate, {{.name = prefix + "down_proj", .out = c.hidden}});
  mlp->activation = c.activation;
  return mlp;
}

Norm LoadNormOf(WeightLoader& weights, const std::string& name, const TransformerConfig& c) {
  if (c.layer_norm) return LoadLayerNorm(weights, name, c.hidden, c.norm_eps, /*has_bias=*/false);
  return LoadNorm(weights, name + ".weight", c.hidden, c.norm_eps, c.norm_adds_one);
}

DecoderModel::Parts LoadEmbeddingAndHead(WeightLoader& weights, const TransformerConfig& c,
                                         const std::string& norm_name, const std::string& embed_name) {
  DecoderModel::Parts parts;
  constexpr char kHead[] = "lm_head.weight";
  // Tied, either may be the one that is stored.
  const bool in_head = c.tied_head && !weights.Has(embed_name + ".weight") && weights.Has(kHead);
  const std::string embedding = in_head ? kHead : embed_name + ".weight";
  parts.embedding = weights.Get(embedding, {c.vocab_size, c.hidden});
  parts.embedding_scale = c.embedding_scale;
  parts.rope_switch_length = c.rope_switch_length;
  parts.max_shareable_tokens = c.max_shareable_tokens;
  parts.head.norm = LoadNormOf(weights, norm_name, c);
  parts.head.softcap = c.logit_softcap;
  parts.head.scale = c.logit_scale;
  // A stored head that differs from the embedding is the head, whatever the configuration says: so in transformers.
  LinearWeights head;
  if (c.tied_head && (!weights.Has(kHead) || weights.Same(kHead, embedding))) {
    head = MatrixOf(weights, {embedding}, parts.embedding);
    weights.IgnoreUnder(kHead);  // stored twice
  } else {
    head = LoadLinear(weights, c.hidden, {{.name = "lm_head", .out = c.vocab_size}});
  }
  head.storage = HeadStorage(head.storage);
  parts.head.linear = head;
  return parts;
}

std::unique_ptr<Block> LoadBlock(WeightLoader& weights, const std::string& prefix, const TransformerConfig& c,
                                 std::unique_ptr<Mixer> mixer, std::unique_ptr<FeedForward> mlp) {
  const auto norm = [&](const char* name) { return LoadNormOf(weights, prefix + name, c); };
  const DType dtype = weights.options().dtype;
  std::unique_ptr<Block> block;
  if (c.parallel) {
    block = std::make_unique<ParallelBlock>(dtype, std::move(mixer), std::move(mlp));
  } else {
    block = std::make_unique<Block>(dtype, std::move(mixer), std::move(mlp));
  }
  if (c.norms != NormPlacement::kPost) block->input_norm = norm("input_layernorm");
  if (c.parallel) return block;
  switch (c.norms) {
    case NormPlacement::kPre:
      block->pre_mlp_norm = norm("post_attention_layernorm");
      break;
    case NormPlacement::kBoth:
      block->pre_mlp_norm = norm("pre_feedforward_layernorm");
      [[fallthrough]];
    case NormPlacement::kPost:
      block->post_mixer_norm = norm("post_attention_layernorm");
      block->post_mlp_norm = norm("post_feedforward_layernorm");
  }
  return block;
}

std::unique_ptr<Model> BuildTransformer(const ConfigReader& config, WeightLoader& weights, const TransformerConfig& c) {
  if (!config.status().ok()) return nullptr;
  DecoderModel::Parts parts = LoadEmbeddingAndHead(weights, c, "model.norm");
  for (int i = 0; i < static_cast<int>(c.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    auto attention = LoadAttention(weights, prefix + "self_attn.", c, i);
    auto mlp = c.load_mlp ? c.load_mlp(weights, prefix, i) : LoadDenseMlp(weights, prefix + "mlp.", c);
    parts.layers.push_back(LoadBlock(weights, prefix, c, std::move(attention), std::move(mlp)));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace berth
