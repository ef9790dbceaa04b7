// nemotron_h: one operation per layer behind one norm: a Mamba-2 mixer, attention without positions, experts or a plain
// feed-forward, none of them gated. Source: transformers' models/nemotron_h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/hybrid.h"
#include "models/layers/experts.h"

namespace berth {
namespace {

struct NemotronHConfig {
  TransformerConfig transformer;
  Mamba2Config mixer;
  RouterConfig router;
  int64_t expert_intermediate = 0;
  int64_t shared_intermediate = 0;
  int64_t latent = 0;  // the experts' width; 0: hidden
  std::vector<std::string> types;
};

// layers_block_type, or hybrid_override_pattern, a letter per layer.
std::vector<std::string> ReadTypes(ConfigReader& config) {
  std::vector<std::string> types;
  for (char letter : config.StringOr("hybrid_override_pattern", "")) {
    const absl::string_view type = letter == 'M'   ? "linear_attention"
                                   : letter == '*' ? "full_attention"
                                   : letter == 'E' ? "moe"
                                                   : "mlp";
    config.Require(type != "mlp" || letter == '-', "hybrid_override_pattern", "holds a letter other than M, *, E, -");
    types.emplace_back(type);
  }
  types = ReadBlockTypes(config, {"linear_attention", "full_attention", "moe", "mlp"}, std::move(types));
  config.Require(!types.empty(), "layers_block_type", "is needed");
  config.Require(static_cast<int64_t>(types.size()) <= kMaxLayers, "num_hidden_layers",
                 absl::StrCat("or the layers' types are ", types.size(), ", more than ", kMaxLayers));
  return types;
}

TransformerConfig ReadShape(ConfigReader& config, int64_t num_layers) {
  TransformerConfig t = ReadTransformer(
      config, {.intermediate = 21504, .num_layers = num_layers, .q_heads = 32, .kv_heads = 8, .head_dim = 128});
  t.num_layers = num_layers;  // whatever num_hidden_layers says
  t.norm_eps = config.DoubleOr("layer_norm_epsilon", 1e-5, 0, 1);
  t.mlp_bias = config.BoolOr("mlp_bias", false);
  t.activation = ReadActivation(config, "mlp_hidden_act", "relu2");
  t.windows.assign(num_layers, 0);
  t.rotaries.resize(num_layers);
  return t;
}

RouterConfig ReadRouter(ConfigReader& config) {
  RouterConfig router = {.routing = Routing::kSigmoid, .sum_floor = 1e-20};
  router.num_experts = config.IntOr("n_routed_experts", 8, 1, kMaxHeads);
  router.top_k = ReadTopK(config, 2, router.num_experts);
  router.num_groups = config.IntOr("n_group", 1, 1, router.num_experts);
  router.top_groups = config.IntOr("topk_group", 1, 1, router.num_groups);
  config.Require(router.num_experts % router.num_groups == 0 && router.num_experts / router.num_groups >= 2, "n_group",
                 "does not divide n_routed_experts into groups of two or more");
  config.Require(router.top_k <= router.num_experts / router.num_groups * router.top_groups, "topk_group",
                 "leaves fewer than num_experts_per_tok experts");
  router.renormalize = config.BoolOr("norm_topk_prob", true);
  router.scale = config.DoubleOr("routed_scaling_factor", 1);
  return router;
}

NemotronHConfig Read(ConfigReader& config) {
  NemotronHConfig c;
  c.types = ReadTypes(config);
  c.transformer = ReadShape(config, static_cast<int64_t>(c.types.size()));
  config.RefuseUnless("mamba_hidden_act", "silu");
  // Names of older files win, as in the reference.
  const auto named = [&](const char* old_name, const char* name) { return config.Has(old_name) ? old_name : name; };
  Mamba2Fields fields = kPlainMamba2Fields;
  fields.heads = "mamba_num_heads";
  fields.head_dim = "mamba_head_dim";
  fields.state_dim = "ssm_state_size";
  fields.groups = named("mamba_n_groups", fields.groups);
  fields.kernel = named("mamba_d_conv", fields.kernel);
  fields.conv_bias = named("mamba_conv_bias", fields.conv_bias);
  c.mixer = ReadMamba2(config, c.transformer.hidden, c.transformer.norm_eps, fields);
  c.mixer.dt_min = config.DoubleOr(named("mamba_dt_min", "time_step_min"), 0.001, 0);
  c.router = ReadRouter(config);
  c.expert_intermediate = config.IntOr("moe_intermediate_size", 7688, 1, kMaxDimension);
  c.shared_intermediate = config.IntOr("moe_shared_expert_intermediate_size", 7688, 1, kMaxDimension);
  c.latent = config.IntOr("moe_latent_size", 0, 1, kMaxDimension);
  return c;
}

std::unique_ptr<FeedForward> LoadFeedForward(WeightLoader& weights, const std::string& prefix, const NemotronHConfig& c,
                                             int64_t intermediate) {
  const TransformerConfig& t = c.transformer;
  return LoadMlp(weights, prefix,
                 {.hidden = t.hidden, .intermediate = intermediate, .bias = t.mlp_bias, .activation = t.activation});
}

std::unique_ptr<FeedForward> LoadMoe(WeightLoader& weights, const std::string& prefix, const NemotronHConfig& c) {
  const TransformerConfig& t = c.transformer;
  Router router = Router::Load(weights, prefix + "gate", t.hidden, c.router);
  router.set_choice_bias(weights.GetFloat32(prefix + "gate.e_score_correction_bias", {c.router.num_experts}));
  auto matrices = LoadExperts(weights, prefix + "experts.", c.router.num_experts, c.latent > 0 ? c.latent : t.hidden,
                              c.expert_intermediate, {.gate = nullptr});
  auto experts = std::make_unique<Experts>(std::move(router), std::move(matrices),
                                           Experts::Options{.activation = t.activation, .gated = false});
  experts->set_shared(LoadFeedForward(weights, prefix + "shared_experts.", c, c.shared_intermediate));
  if (c.latent > 0) {
    experts->set_latent(
        LoadLinear(weights, t.hidden, {{.name = prefix + "fc1_latent_proj", .out = c.latent, .has_bias = t.mlp_bias}}),
        LoadLinear(weights, c.latent, {{.name = prefix + "fc2_latent_proj", .out = t.hidden, .has_bias = t.mlp_bias}}));
  }
  return experts;
}

std::unique_ptr<Block> LoadLayer(WeightLoader& weights, const std::string& prefix, NemotronHConfig& c, int layer) {
  const std::string mixer = prefix + "mixer.";
  const std::string& type = c.types[layer];
  const Norm norm = LoadNormOf(weights, prefix + "norm", c.transformer);
  auto block = std::make_unique<Block>(weights.options().dtype, nullptr, nullptr);
  if (type == "moe") block->mlp = LoadMoe(weights, mixer, c);
  if (type == "mlp") block->mlp = LoadFeedForward(weights, mixer, c, c.transformer.intermediate);
  if (type == "full_attention") block->mixer = LoadAttention(weights, mixer, c.transformer, layer);
  if (type == "linear_attention") {
    c.mixer.layer = layer;
    block->mixer = Mamba2Mixer::Load(weights, mixer, c.mixer);
  }
  (block->mlp != nullptr ? block->pre_mlp_norm : block->input_norm) = norm;
  return block;
}

}  // namespace

std::unique_ptr<Model> BuildNemotronH(ConfigReader& config, WeightLoader& weights) {
  NemotronHConfig c = Read(config);
  if (!config.status().ok()) return nullptr;
  const std::string root = weights.Has("model.norm_f.weight") ? "model." : "backbone.";
  weights.IgnoreUnder("mtp.");  // layers that guess several tokens at once
  DecoderModel::Parts parts = LoadEmbeddingAndHead(weights, c.transformer, root + "norm_f", root + "embeddings");
  for (int i = 0; i < static_cast<int>(c.transformer.num_layers); ++i) {
    parts.layers.push_back(LoadLayer(weights, absl::StrCat(root, "layers.", i, "."), c, i));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace berth
