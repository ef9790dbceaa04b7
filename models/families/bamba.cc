// bamba and granitemoehybrid: Mamba-2 mixers, attention in some layers, a feed-forward in each. Granite multiplies at
// several places, may have no positions, and adds experts to its feed-forward. Source: transformers' models/{bamba,
// granitemoehybrid}.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/hybrid.h"
#include "models/layers/experts.h"

namespace berth {
namespace {

// The model of either: `names` tells where its parts are.
struct Names {
  const char* final_norm;
  const char* mlp_norm;
};

using LoadFeedForward = std::function<std::unique_ptr<FeedForward>(WeightLoader&, const std::string& prefix)>;

std::unique_ptr<Model> Build(WeightLoader& weights, const TransformerConfig& t, Mamba2Config mixer,
                             const std::vector<std::string>& types, const Names& names, double residual_scale,
                             const LoadFeedForward& load_mlp) {
  DecoderModel::Parts parts = LoadEmbeddingAndHead(weights, t, names.final_norm);
  for (int i = 0; i < static_cast<int>(t.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    std::unique_ptr<Mixer> tokens;
    if (types[i] == "full_attention") {
      tokens = LoadAttention(weights, prefix + "self_attn.", t, i);
    } else {
      mixer.layer = i;
      tokens = Mamba2Mixer::Load(weights, prefix + "mamba.", mixer);
    }
    auto block =
        LoadHybridBlock(weights, prefix, t, std::move(tokens), load_mlp(weights, prefix), {.mlp = names.mlp_norm});
    block->residual_scale = residual_scale;
    parts.layers.push_back(std::move(block));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

Mamba2Config ReadMixer(ConfigReader& config, const TransformerConfig& t) {
  config.RefuseUnless("hidden_act", "silu");  // the convolution's too
  Mamba2Config mixer = ReadMamba2(config, t.hidden, t.norm_eps, {.same_head_dim = "mamba_d_head"});
  ReadTimeStepLimit(config, &mixer);
  return mixer;
}

// The product of gate and up is stored as one.
std::unique_ptr<FeedForward> LoadFusedMlp(WeightLoader& weights, const std::string& prefix, int64_t hidden,
                                          int64_t intermediate) {
  auto mlp = std::make_unique<GatedMlp>();
  mlp->gate_up = LoadLinear(weights, hidden, {{.name = prefix + "input_linear", .out = 2 * intermediate}});
  mlp->down = LoadLinear(weights, intermediate, {{.name = prefix + "output_linear", .out = hidden}});
  return mlp;
}

}  // namespace

std::unique_ptr<Model> BuildBamba(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig t = ReadTransformer(config, {.norm_eps = 1e-5});
  t.qkv_bias = t.output_bias = config.BoolOr("attention_bias", false);
  t.mlp_bias = config.BoolOr("mlp_bias", false);
  const Mamba2Config mixer = ReadMixer(config, t);
  std::vector<std::string> types(t.num_layers, "linear_attention");
  for (int64_t layer : config.IntListOr("attn_layer_indices", {}, 0, kMaxLayers)) {
    if (layer < t.num_layers) types[layer] = "full_attention";
  }
  ReadSharedRotary(config, weights,
                   {.default_partial_rotary_factor = 0.5,
                    .rotates_partly = true,
                    .reads_outer_factor = false,
                    .types = RotaryTypes()},
                   {}, &t);
  if (!config.status().ok()) return nullptr;
  return Build(weights, t, mixer, types, {.final_norm = "model.final_layernorm", .mlp_norm = "pre_ff_layernorm"}, 1,
               [&](WeightLoader& loader, const std::string& prefix) {
                 return LoadDenseMlp(loader, prefix + "feed_forward.", t);
               });
}

std::unique_ptr<Model> BuildGraniteHybrid(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig t = ReadTransformer(config);
  t.qkv_bias = t.output_bias = config.BoolOr("attention_bias", false);
  t.embedding_scale = config.DoubleOr("embedding_multiplier", 1);
  t.score_scale = config.DoubleOr("attention_multiplier", 1);
  t.logit_scale = 1 / config.DoubleOr("logits_scaling", 1, 1e-9);
  const double residual_scale = config.DoubleOr("residual_multiplier", 1);
  const int64_t shared = config.IntOr("shared_intermediate_size", 1024, 1, kMaxDimension);
  RouterConfig router = {.routing = Routing::kSoftmaxOfChosen};
  router.num_experts = config.IntOr("num_local_experts", 8, 0, kMaxHeads);
  if (router.num_experts > 0) router.top_k = ReadTopK(config, 2, router.num_experts);
  const Mamba2Config mixer = ReadMixer(config, t);
  const std::vector<std::string> types = ReadBlockTypes(config, {"linear_attention", "full_attention"},
                                                        std::vector<std::string>(t.num_layers, "linear_attention"));
  RequireLayers(config, types, t.num_layers);
  if (config.StringOr("position_embedding_type", "") == "rope") {
    ReadSharedRotary(config, weights, {.types = RotaryTypes()}, {}, &t);
  }
  if (!config.status().ok()) return nullptr;
  const auto load_mlp = [&](WeightLoader& loader, const std::string& prefix) -> std::unique_ptr<FeedForward> {
    auto dense = LoadFusedMlp(loader, prefix + "shared_mlp.", t.hidden, shared);
    if (router.num_experts == 0) return dense;
    const std::string moe = prefix + "block_sparse_moe.";
    const auto stack = [&](const char* name, int64_t out, int64_t in) {
      return PackStack(loader, {moe + name}, loader.GetMatrix(moe + name, {router.num_experts, out, in}));
    };
    Experts::Weights matrices = {.up = stack("input_linear.weight", 2 * t.intermediate, t.hidden),
                                 .down = stack("output_linear.weight", t.hidden, t.intermediate)};
    auto experts = std::make_unique<Experts>(Router::Load(loader, moe + "router.layer", t.hidden, router),
                                             std::move(matrices), Experts::Options{});
    experts->set_shared(std::move(dense));
    return experts;
  };
  return Build(weights, t, mixer, types, {.final_norm = "model.norm", .mlp_norm = "post_attention_layernorm"},
               residual_scale, load_mlp);
}

}  // namespace berth
