// jamba: Mamba mixers with norms inside, attention without positions every few layers, experts every few others.
// Source: transformers' models/jamba.
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/hybrid.h"
#include "models/layers/experts.h"
#include "models/layers/mamba_mixer.h"

namespace berth {
namespace {

// Layers offset, offset + period, ...
struct Every {
  int64_t period, offset;
  bool operator()(int64_t layer) const { return layer % period == offset; }
};

struct JambaConfig {
  TransformerConfig transformer;
  MambaConfig mixer;
  RouterConfig router;
  Every attention, experts;
};

Every ReadEvery(ConfigReader& config, const char* period, int64_t default_period, const char* offset,
                int64_t default_offset) {
  return {config.IntOr(period, default_period, 1, kMaxLayers), config.IntOr(offset, default_offset, 0, kMaxLayers)};
}

JambaConfig Read(ConfigReader& config) {
  JambaConfig c;
  c.transformer = ReadTransformer(config);
  c.transformer.activation = ReadActivation(config, "hidden_act", "silu");
  config.RefuseUnless("hidden_act", "silu");  // the mixer's too
  c.attention = ReadEvery(config, "attn_layer_period", 8, "attn_layer_offset", 4);
  c.experts = ReadEvery(config, "expert_layer_period", 2, "expert_layer_offset", 1);
  c.router.num_experts = config.IntOr("num_experts", 16, 1, kMaxHeads);
  if (c.router.num_experts > 1) c.router.top_k = ReadTopK(config, 2, c.router.num_experts);
  MambaConfig& mixer = c.mixer;
  mixer.hidden = c.transformer.hidden;
  mixer.inner = config.IntOr("mamba_expand", 2, 1, 1024) * mixer.hidden;
  mixer.state_dim = config.IntOr("mamba_d_state", 16, 1, kMaxDimension);
  mixer.dt_rank = config.IntOrAuto("mamba_dt_rank", (mixer.hidden + 15) / 16, 1, kMaxDimension);
  mixer.kernel = config.IntOr("mamba_d_conv", 4, 2, 64);
  mixer.conv_bias = config.BoolOr("mamba_conv_bias", true);
  mixer.proj_bias = config.BoolOr("mamba_proj_bias", false);
  mixer.norms = MambaConfig::Norms::kLearned;
  mixer.norm_eps = c.transformer.norm_eps;
  return c;
}

std::unique_ptr<FeedForward> LoadFeedForward(WeightLoader& weights, const std::string& prefix, const JambaConfig& c,
                                             int layer) {
  const TransformerConfig& t = c.transformer;
  if (c.router.num_experts == 1 || !c.experts(layer)) return LoadDenseMlp(weights, prefix, t);
  auto matrices = LoadExperts(weights, prefix + "experts.", c.router.num_experts, t.hidden, t.intermediate);
  return std::make_unique<Experts>(Router::Load(weights, prefix + "router", t.hidden, c.router), std::move(matrices),
                                   Experts::Options{.activation = t.activation});
}

}  // namespace

std::unique_ptr<Model> BuildJamba(ConfigReader& config, WeightLoader& weights) {
  JambaConfig c = Read(config);
  if (!config.status().ok()) return nullptr;
  DecoderModel::Parts parts = LoadEmbeddingAndHead(weights, c.transformer, "model.final_layernorm");
  for (int i = 0; i < static_cast<int>(c.transformer.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    std::unique_ptr<Mixer> mixer;
    if (c.attention(i)) {
      mixer = LoadAttention(weights, prefix + "self_attn.", c.transformer, i);
    } else {
      c.mixer.layer = i;
      mixer = MambaMixer::Load(weights, prefix + "mamba.", c.mixer);
    }
    auto mlp = LoadFeedForward(weights, prefix + "feed_forward.", c, i);
    parts.layers.push_back(LoadHybridBlock(weights, prefix, c.transformer, std::move(mixer), std::move(mlp)));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace berth
