// qwen3_next and the text part of qwen3_5 (dense and with experts). After each three gated delta nets comes full
// attention with a gated output. Norms multiply by (1 + weight). A quarter of each head has rotary positions. The three
// positions that qwen3_5's rotary interleaves are equal in text. Source: transformers' models/{qwen3_next,qwen3_5,
// qwen3_5_moe}.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/delta_net_fields.h"
#include "models/families/family.h"
#include "models/families/transformer.h"
#include "models/layers/experts.h"
#include "models/layers/gated_delta_net.h"

namespace berth {
namespace {

struct Qwen3NextConfig {
  TransformerConfig transformer;
  GatedDeltaNetConfig delta_net;
  std::vector<std::string> types;  // by layer
  std::vector<bool> sparse;        // by layer: whether it has experts
  RouterConfig router;
  int64_t expert_intermediate = 0;
  int64_t shared_intermediate = 0;
};

Qwen3NextConfig Read(ConfigReader& config, const WeightLoader& weights) {
  Qwen3NextConfig c;
  TransformerConfig& t = c.transformer;
  t = ReadTransformer(config, {.head_dim = 256, .may_lack_dense_mlp = true});
  config.RefuseUnless("hidden_act", "silu", "swish");
  config.RefuseUnless("attn_output_gate", true);
  t.qkv_bias = t.output_bias = config.BoolOr("attention_bias", false);
  t.qk_norm = QkNorm::kHead;
  t.norm_adds_one = true;
  t.output_gate = true;
  ReadSharedRotary(config, weights,
                   {.default_partial_rotary_factor = 0.25, .rotates_partly = true, .types = RotaryTypes()}, {}, &t);
  const int64_t interval = config.IntOr("full_attention_interval", 4, 1, kMaxLayers);
  c.types = ReadLayerTypes(config, t.num_layers, {"linear_attention", "full_attention"},
                           PeriodicLayerTypes(t.num_layers, interval, "linear_attention"));
  c.sparse.assign(t.num_layers, false);
  c.delta_net =
      ReadDeltaNet(config, {.hidden = t.hidden, .k_heads = 16, .v_heads = 32, .key_dim = 128, .value_dim = 128});
  c.delta_net.norm_eps = t.norm_eps;
  return c;
}

void ReadExperts(ConfigReader& config, Qwen3NextConfig* c) {
  c->router = {.num_experts = config.IntOr("num_experts", 512, 0, kMaxHeads)};
  if (c->router.num_experts == 0) return;
  c->router.top_k = ReadTopK(config, 10, c->router.num_experts);
  c->router.renormalize = config.BoolOr("norm_topk_prob", true);
  c->expert_intermediate = config.IntOr("moe_intermediate_size", 512, 1, kMaxDimension);
  c->shared_intermediate = config.IntOr("shared_expert_intermediate_size", 512, 1, kMaxDimension);
  c->sparse = ReadSparseLayers(config, c->transformer.num_layers);
}

std::unique_ptr<FeedForward> LoadFeedForward(WeightLoader& weights, const std::string& prefix, const Qwen3NextConfig& c,
                                             int layer) {
  const TransformerConfig& t = c.transformer;
  if (!c.sparse[layer]) return LoadDenseMlp(weights, prefix, t);
  auto experts = std::make_unique<Experts>(
      Router::Load(weights, prefix + "gate", t.hidden, c.router),
      LoadExperts(weights, prefix + "experts.", c.router.num_experts, t.hidden, c.expert_intermediate),
      Experts::Options{});
  experts->set_shared(
      LoadGatedMlp(weights, prefix + "shared_expert.", {.hidden = t.hidden, .intermediate = c.shared_intermediate}),
      LoadLinear(weights, t.hidden, {{.name = prefix + "shared_expert_gate", .out = 1}}));
  return experts;
}

std::unique_ptr<Model> Build(ConfigReader& config, WeightLoader& weights, Qwen3NextConfig c) {
  if (std::find(c.sparse.begin(), c.sparse.end(), false) != c.sparse.end()) RequireIntermediate(config, c.transformer);
  if (!config.status().ok()) return nullptr;
  const TransformerConfig& t = c.transformer;
  weights.IgnoreUnder("mtp.");  // layers that guess several tokens at once
  DecoderModel::Parts parts = LoadEmbeddingAndHead(weights, t, "model.norm");
  for (int i = 0; i < static_cast<int>(t.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    c.delta_net.layer = i;
    std::unique_ptr<Mixer> mixer;
    if (c.types[i] == "linear_attention") {
      mixer = GatedDeltaNet::Load(weights, prefix + "linear_attn.", c.delta_net);
    } else {
      mixer = LoadAttention(weights, prefix + "self_attn.", t, i);
    }
    parts.layers.push_back(
        LoadBlock(weights, prefix, t, std::move(mixer), LoadFeedForward(weights, prefix + "mlp.", c, i)));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace

std::unique_ptr<Model> BuildQwen3Next(ConfigReader& config, WeightLoader& weights) {
  Qwen3NextConfig c = Read(config, weights);
  c.delta_net.tensors = DeltaNetTensors::kInterleaved;
  ReadExperts(config, &c);
  return Build(config, weights, std::move(c));
}

std::unique_ptr<Model> BuildQwen3_5(ConfigReader& config, WeightLoader& weights) {
  return Build(config, weights, Read(config, weights));
}

std::unique_ptr<Model> BuildQwen3_5Moe(ConfigReader& config, WeightLoader& weights) {
  Qwen3NextConfig c = Read(config, weights);
  c.router = {.num_experts = config.IntOr("num_experts", 256, 1, kMaxHeads), .renormalize = true};
  c.router.top_k = ReadTopK(config, 8, c.router.num_experts);
  c.expert_intermediate = config.IntOr("moe_intermediate_size", 512, 1, kMaxDimension);
  c.shared_intermediate = config.IntOr("shared_expert_intermediate_size", 512, 1, kMaxDimension);
  c.sparse.assign(c.transformer.num_layers, true);
  return Build(config, weights, std::move(c));
}

}  // namespace berth
