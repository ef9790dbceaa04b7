// olmo_hybrid. Gated delta nets stand between norms as in llama; attention layers have their norms after, as in olmo3.
// The whole projections of q and k have norms. There are no positions if the configuration has a rope_theta of null.
// Source: transformers' models/olmo_hybrid.
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/delta_net_fields.h"
#include "models/families/family.h"
#include "models/families/transformer.h"
#include "models/layers/gated_delta_net.h"

namespace berth {
namespace {

constexpr double kDeltaNetNormEps = 1e-5;  // whatever rms_norm_eps is

GatedDeltaNetConfig ReadMixer(ConfigReader& config, const TransformerConfig& t) {
  const int64_t k_heads = config.IntOr("linear_num_key_heads", t.q_heads, 1, kMaxHeads);
  const int64_t key_dim = config.IntOr("linear_key_head_dim", 3 * t.hidden / (4 * k_heads), 1, kMaxDimension);
  GatedDeltaNetConfig c = ReadDeltaNet(
      config,
      {.hidden = t.hidden, .k_heads = k_heads, .v_heads = t.q_heads, .key_dim = key_dim, .value_dim = 2 * key_dim});
  c.norm_eps = kDeltaNetNormEps;
  c.beta_scale = config.BoolOr("linear_allow_neg_eigval", true) ? 2 : 1;
  c.tensors = DeltaNetTensors::kSeparate;
  return c;
}

// A layer's norm by the name that transformers gives it, or by that of the first checkpoints.
Norm LoadLayerNorm(WeightLoader& weights, const std::string& prefix, const char* name, const char* first_name,
                   const TransformerConfig& c) {
  const bool first = weights.Has(absl::StrCat(prefix, first_name, ".weight"));
  return LoadNormOf(weights, prefix + (first ? first_name : name), c);
}

std::unique_ptr<Block> LoadLayer(WeightLoader& weights, const std::string& prefix, const TransformerConfig& t,
                                 const GatedDeltaNetConfig& delta_net, bool attends) {
  const auto middle_norm = [&] {
    return LoadLayerNorm(weights, prefix, "post_attention_layernorm", "feedforward_layer_norm", t);
  };
  std::unique_ptr<Mixer> mixer;
  if (attends) {
    mixer = LoadAttention(weights, prefix + "self_attn.", t, delta_net.layer);
  } else {
    mixer = GatedDeltaNet::Load(weights, prefix + "linear_attn.", delta_net);
  }
  auto block =
      std::make_unique<Block>(weights.options().dtype, std::move(mixer), LoadDenseMlp(weights, prefix + "mlp.", t));
  if (attends) {
    block->post_mixer_norm = middle_norm();
    block->post_mlp_norm = LoadNormOf(weights, prefix + "post_feedforward_layernorm", t);
  } else {
    block->input_norm = LoadLayerNorm(weights, prefix, "input_layernorm", "attention_layer_norm", t);
    block->pre_mlp_norm = middle_norm();
  }
  return block;
}

// A null in the configuration itself counts where the fields of positions have no rope_theta.
bool HasPositions(ConfigReader& config) {
  const ConfigReader rope = config.ObjectOr(config.Has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  if (rope.Has("rope_theta")) return true;
  return !rope.IsNull("rope_theta") && !config.IsNull("rope_theta");
}

}  // namespace

std::unique_ptr<Model> BuildOlmoHybrid(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig t = ReadTransformer(config);
  config.RefuseUnless("hidden_act", "silu", "swish");  // the convolution's too
  t.qkv_bias = t.output_bias = config.BoolOr("attention_bias", false);
  t.qk_norm = QkNorm::kProjection;
  std::vector<std::string> fallback = PeriodicLayerTypes(t.num_layers, 4, "linear_attention");
  if (t.num_layers < 4) fallback.back() = "full_attention";
  const std::vector<std::string> types =
      ReadLayerTypes(config, t.num_layers, {"linear_attention", "full_attention"}, std::move(fallback));
  GatedDeltaNetConfig delta_net = ReadMixer(config, t);
  if (HasPositions(config)) {
    ReadSharedRotary(config, weights, {.types = RotaryTypes()}, {}, &t);
  }
  if (!config.status().ok()) return nullptr;

  DecoderModel::Parts parts = LoadEmbeddingAndHead(weights, t, "model.norm");
  for (int i = 0; i < static_cast<int>(t.num_layers); ++i) {
    delta_net.layer = i;
    parts.layers.push_back(LoadLayer(weights, absl::StrCat("model.layers.", i, "."), t, delta_net,
                                     /*attends=*/types[i] == "full_attention"));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace berth
