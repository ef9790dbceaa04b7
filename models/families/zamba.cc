// zamba and zamba2. Every layer has a Mamba mixer. Some layers first run a transformer block whose weights they share.
// It reads the stream beside the embeddings, and its output is added to what the mixer reads. In zamba2, several such
// blocks take turns, and each layer has a low-rank addition to their products. Source: transformers'
// models/{zamba,zamba2}.
#include <ATen/ops/block_diag.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>

#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/hybrid.h"
#include "models/layers/mamba_mixer.h"

namespace berth {
namespace {

// What a layer adds to its mixer's input: linear(mlp(attention(x beside the embeddings))), without sums of its own.
struct Transformer {
  Norm input_norm, pre_mlp_norm;
  std::unique_ptr<Attention> attention;
  GatedMlp mlp;
  Linear linear;

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& embedded, const StepBatch& batch) const {
    Execution& execution = batch.execution();
    const at::Tensor attended = (*attention)(input_norm(at::cat({x, embedded}, 1), execution), batch);
    return linear(mlp(pre_mlp_norm(attended, execution), execution), execution);
  }
};

struct ZambaLayer {
  Norm norm;
  std::unique_ptr<Mixer> mixer;
  std::unique_ptr<Transformer> transformer;  // null in most
};

// Not a DecoderModel: layers read the embeddings too.
class ZambaModel : public Model {
 public:
  ZambaModel(DecoderModel::Parts ends, std::vector<ZambaLayer> layers, DType dtype)
      : ends_(std::move(ends)), layers_(std::move(layers)), dtype_(dtype) {}

  std::vector<LayerCacheSpec> cache_specs() const override {
    std::vector<LayerCacheSpec> specs;
    for (const ZambaLayer& layer : layers_) {
      specs.push_back(layer.mixer->cache_spec(dtype_));
      if (layer.transformer != nullptr) specs.back().kv = layer.transformer->attention->cache_spec(dtype_).kv;
    }
    return specs;
  }
  int64_t vocab_size() const override { return ends_.embedding.size(0); }
  int64_t hidden_size() const override { return ends_.embedding.size(1); }

  at::Tensor Forward(const StepBatch& batch) const override {
    const at::Tensor embedded = at::index_select(ends_.embedding, 0, batch.token_ids());
    at::Tensor x = embedded;
    for (const ZambaLayer& layer : layers_) {
      const at::Tensor input = layer.transformer == nullptr ? x : x.add((*layer.transformer)(x, embedded, batch));
      x = x.add((*layer.mixer)(layer.norm(input, batch.execution()), batch));
    }
    return ends_.head(x, batch);
  }

 private:
  DecoderModel::Parts ends_;
  std::vector<ZambaLayer> layers_;
  DType dtype_;
};

struct ZambaConfig {
  TransformerConfig transformer;
  std::vector<std::string> types;
  int64_t attention_hidden = 0;  // the width of the stream beside the embeddings

  // zamba2's.
  bool fused_mlp = false;        // gate and up are one matrix
  int64_t num_blocks = 1;        // of shared weights
  int64_t adapter_rank = 0;      // of the low-rank addition to the feed-forward; 0: none
  bool adapt_attention = false;  // and to q, k, v
  const char* shared_name = "shared_transf.";

  bool hybrid(int64_t layer) const { return types[layer] == "hybrid"; }
};

// The fields of both.
ZambaConfig Read(ConfigReader& config, std::vector<std::string> fallback_types) {
  ZambaConfig c;
  TransformerConfig& t = c.transformer;
  t.vocab_size = config.Int("vocab_size", 1, kMaxVocabulary);
  t.hidden = config.Int("hidden_size", 1, kMaxDimension);
  t.intermediate = config.IntOr("intermediate_size", 4 * t.hidden, 1, kMaxDimension);
  t.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers);
  t.q_heads = config.Int("num_attention_heads", 1, kMaxHeads);
  t.kv_heads = config.IntOr("num_key_value_heads", t.q_heads, 1, kMaxHeads);
  config.Require(t.q_heads % t.kv_heads == 0, "num_attention_heads", "is not a multiple of num_key_value_heads");
  c.attention_hidden = config.IntOr("attention_hidden_size", 2 * t.hidden, 1, kMaxDimension);
  config.Require(c.attention_hidden == 2 * t.hidden, "attention_hidden_size", "is not twice hidden_size");
  t.head_dim = config.IntOr("attention_head_dim", std::max<int64_t>(1, 2 * t.hidden / t.q_heads), 1, kMaxDimension);
  t.score_scale = 1 / std::sqrt(static_cast<double>(t.head_dim) / 2);
  t.norm_eps = config.DoubleOr("rms_norm_eps", 1e-5, 0, 1);
  t.tied_head = config.BoolOr("tie_word_embeddings", true);
  t.activation = ReadActivation(config, "hidden_act", "gelu");
  t.rotaries.resize(t.num_layers);
  c.types = ReadBlockTypes(config, {"linear_attention", "hybrid"}, std::move(fallback_types));
  RequireLayers(config, c.types, t.num_layers);
  return c;
}

// `linear` with the low-rank products `names`[i].0 and .1 of the layer, each for the i-th of its equal parts.
Linear LoadAdapter(WeightLoader& weights, const std::vector<std::string>& names, int64_t in, int64_t rank,
                   const Linear& linear) {
  const int64_t out = linear.outputs() / static_cast<int64_t>(names.size());
  std::vector<LinearPart> down;
  std::vector<std::string> up_names;
  std::vector<at::Tensor> up;
  for (const std::string& name : names) {
    down.push_back({.name = name + ".0", .out = rank});
    up_names.push_back(name + ".1.weight");
    up.push_back(weights.GetMatrix(up_names.back(), {out, rank}));
  }
  LinearWeights both[] = {LoadLinear(weights, in, down),
                          MatrixOf(weights, up_names, up.size() == 1 ? up[0] : at::block_diag(up))};
  for (LinearWeights& matrix : both) matrix.storage = DType::kFloat32;
  return linear.WithAdapter(both[0], both[1]);
}

// The matrices of a block, which all layers that use it share.
struct SharedBlock {
  Linear qkv, output, gate_up, down;
};

SharedBlock LoadSharedBlock(WeightLoader& weights, const std::string& shared, const ZambaConfig& c) {
  const TransformerConfig& t = c.transformer;
  const std::string attention = shared + "self_attn.";
  const std::string mlp = shared + "feed_forward.";
  std::vector<LinearPart> gate_up = {{.name = mlp + "gate_proj", .out = t.intermediate},
                                     {.name = mlp + "up_proj", .out = t.intermediate}};
  if (c.fused_mlp) gate_up = {{.name = mlp + "gate_up_proj", .out = 2 * t.intermediate, .has_bias = t.mlp_bias}};
  return {.qkv = LoadLinear(weights, c.attention_hidden,
                            {{.name = attention + "q_proj", .out = t.q_heads * t.head_dim},
                             {.name = attention + "k_proj", .out = t.kv_heads * t.head_dim},
                             {.name = attention + "v_proj", .out = t.kv_heads * t.head_dim}}),
          .output = LoadLinear(weights, t.q_heads * t.head_dim, {{.name = attention + "o_proj", .out = t.hidden}}),
          .gate_up = LoadLinear(weights, t.hidden, gate_up),
          .down = LoadLinear(weights, t.intermediate,
                             {{.name = mlp + "down_proj", .out = t.hidden, .has_bias = t.mlp_bias}})};
}

// `shared` is where the weights are, `matrices` those of them, `use` how many hybrid layers came before this one.
std::unique_ptr<Transformer> LoadTransformer(WeightLoader& weights, const std::string& prefix,
                                             const std::string& shared, const SharedBlock& matrices,
                                             const ZambaConfig& c, int layer, int use) {
  const TransformerConfig& t = c.transformer;
  auto block = std::make_unique<Transformer>();
  block->input_norm = LoadNorm(weights, shared + "input_layernorm.weight", c.attention_hidden, t.norm_eps);
  block->pre_mlp_norm = LoadNorm(weights, shared + "pre_ff_layernorm.weight", t.hidden, t.norm_eps);
  block->linear = LoadLinear(weights, t.hidden, {{.name = prefix + "linear", .out = t.hidden}});

  const std::string attention = shared + "self_attn.";
  Attention::Weights parts;
  parts.qkv = matrices.qkv;
  parts.output = matrices.output;
  parts.rotary = t.rotaries[layer];
  if (c.adapt_attention) {
    const auto name = [&](const char* part) { return absl::StrCat(attention, "linear_", part, "_adapter_list.", use); };
    parts.qkv = LoadAdapter(weights, {name("q"), name("k"), name("v")}, c.attention_hidden, c.adapter_rank, parts.qkv);
  }
  block->attention = std::make_unique<Attention>(
      AttentionConfig{
          .layer = layer, .q_heads = t.q_heads, .kv_heads = t.kv_heads, .head_dim = t.head_dim, .scale = t.score_scale},
      std::move(parts));

  block->mlp.gate_up = matrices.gate_up;
  block->mlp.down = matrices.down;
  block->mlp.activation = t.activation;
  if (c.adapter_rank > 0) {
    block->mlp.gate_up = LoadAdapter(weights, {absl::StrCat(shared, "feed_forward.gate_up_proj_adapter_list.", use)},
                                     t.hidden, c.adapter_rank, matrices.gate_up);
  }
  return block;
}

// Returns the prefix of the shared block's weights, for the `use`-th layer with a block, whose own names begin with
// `own`. They are stored with the first layer that uses the block, which `blocks` notes. transformers ties neither
// blocks nor embeddings where tie_word_embeddings is false.
std::string FindBlock(WeightLoader& weights, const ZambaConfig& c, const std::string& own, int use,
                      std::vector<std::string>& blocks) {
  const bool untied = !c.transformer.tied_head && weights.Has(own + "input_layernorm.weight");
  if (untied) {  // its adapters for the block's other uses are not used
    weights.IgnoreUnder(own + "self_attn.linear_");
    weights.IgnoreUnder(own + "feed_forward.gate_up_proj_adapter_list.");
    return own;
  }
  if (use < c.num_blocks) {
    blocks.push_back(own);
  } else {
    weights.IgnoreUnder(own);  // some checkpoints store every copy
  }
  return blocks.empty() ? own : blocks[use % static_cast<int>(blocks.size())];
}

// load_mixer(prefix, layer) gives a layer's mixer.
std::unique_ptr<Model> Build(WeightLoader& weights, const ZambaConfig& c,
                             const std::function<std::unique_ptr<Mixer>(const std::string&, int)>& load_mixer) {
  std::vector<ZambaLayer> layers;
  std::vector<std::string> blocks;            // where the shared weights are: with the first layers that use them
  std::map<std::string, SharedBlock> loaded;  // by where they are
  int uses = 0;
  for (int i = 0; i < static_cast<int>(c.transformer.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const std::string mamba = c.hybrid(i) ? prefix + "mamba_decoder." : prefix;
    ZambaLayer layer;
    layer.norm = LoadNormOf(weights, mamba + "input_layernorm", c.transformer);
    layer.mixer = load_mixer(mamba + "mamba.", i);
    if (c.hybrid(i)) {
      const std::string shared = FindBlock(weights, c, prefix + c.shared_name, uses, blocks);
      const auto [matrices, is_new] = loaded.try_emplace(shared);
      if (is_new) matrices->second = LoadSharedBlock(weights, shared, c);
      layer.transformer = LoadTransformer(weights, prefix, shared, matrices->second, c, i, uses++);
    }
    layers.push_back(std::move(layer));
  }
  return std::make_unique<ZambaModel>(LoadEmbeddingAndHead(weights, c.transformer, "model.final_layernorm"),
                                      std::move(layers), weights.options().dtype);
}

MambaConfig ReadMambaMixer(ConfigReader& config, int64_t hidden) {
  MambaConfig c;
  c.hidden = hidden;
  c.inner = config.IntOr("mamba_expand", 2, 1, 1024) * hidden;
  c.heads = config.IntOr("n_mamba_heads", 2, 1, kMaxHeads);
  config.Require(c.inner % c.heads == 0, "n_mamba_heads", "does not divide mamba_expand * hidden_size");
  c.state_dim = config.IntOr("mamba_d_state", 16, 1, kMaxDimension);
  c.dt_rank = config.IntOrAuto("mamba_dt_rank", (hidden + 15) / 16, 1, kMaxDimension);
  c.kernel = config.IntOr("mamba_d_conv", 4, 2, 64);
  c.conv_bias = config.BoolOr("mamba_conv_bias", true);
  c.proj_bias = config.BoolOr("mamba_proj_bias", false);
  config.RefuseUnless("hidden_mamba_act", "silu");
  return c;
}

// What zamba's configuration means where it does not list the layers.
std::vector<std::string> PeriodicTypes(ConfigReader& config) {
  const int64_t period = config.IntOr("attn_layer_period", 6, 1, kMaxLayers);
  const int64_t offset = config.IntOr("attn_layer_offset", 4, 0, kMaxLayers);
  std::vector<std::string> types = {"linear_attention", "linear_attention", "hybrid"};
  const int64_t num_layers = config.Int("num_hidden_layers", 1, kMaxLayers);
  for (int64_t i = 0; i < num_layers - 3; ++i) types.push_back(i % period == offset ? "hybrid" : "linear_attention");
  return types;
}

}  // namespace

std::unique_ptr<Model> BuildZamba(ConfigReader& config, WeightLoader& weights) {
  const ZambaConfig c = Read(config, PeriodicTypes(config));
  MambaConfig mixer = ReadMambaMixer(config, c.transformer.hidden);
  if (!config.status().ok()) return nullptr;
  return Build(weights, c, [&](const std::string& prefix, int layer) {
    mixer.layer = layer;
    return MambaMixer::Load(weights, prefix, mixer);
  });
}

std::unique_ptr<Model> BuildZamba2(ConfigReader& config, WeightLoader& weights) {
  ZambaConfig c = Read(config, {});
  TransformerConfig& t = c.transformer;
  t.mlp_bias = config.BoolOr("add_bias_linear", false);
  c.fused_mlp = true;
  c.shared_name = "shared_transformer.";
  c.num_blocks = config.IntOr("num_mem_blocks", 1, 1, kMaxLayers);
  c.adapter_rank = config.IntOr("adapter_rank", 128, 1, kMaxDimension);
  c.adapt_attention = config.BoolOr("use_shared_attention_adapter", false);
  config.Require(!c.adapt_attention || t.kv_heads * t.head_dim == c.attention_hidden, "num_key_value_heads",
                 "does not fit use_shared_attention_adapter, whose products are as wide as the queries");
  config.RefuseUnless("use_long_context", false);
  std::vector<int64_t> hybrid_layers;
  for (int64_t i = 0; i < static_cast<int64_t>(c.types.size()); ++i) {
    if (c.types[i] == "hybrid") hybrid_layers.push_back(i);
  }
  config.Require(config.IntListOr("hybrid_layer_ids", hybrid_layers, 0, kMaxLayers) == hybrid_layers,
                 "hybrid_layer_ids", "does not count up the hybrid layers");
  Mamba2Config mixer = ReadMamba2(config, t.hidden, 1e-5,
                                  {.heads = "n_mamba_heads",
                                   .groups = "mamba_ngroups",
                                   .same_head_dim = "mamba_headdim",
                                   .proj_bias = "add_bias_linear",
                                   .default_heads = 8,
                                   .default_state_dim = 64});
  mixer.conv_bias = true;  // whatever use_conv_bias says
  mixer.dt_min = config.DoubleOr("time_step_min", 0.001, 0);
  if (config.BoolOr("use_mem_rope", false)) ReadSharedRotary(config, weights, {.types = RotaryTypes()}, {}, &t);
  if (!config.status().ok()) return nullptr;
  return Build(weights, c, [&](const std::string& prefix, int layer) {
    mixer.layer = layer;
    return Mamba2Mixer::Load(weights, prefix, mixer);
  });
}

}  // namespace berth
