// recurrent_gemma (Griffin): recurrent blocks and sliding attention in turn, norms that multiply by (1 + weight), a
// scaled embedding, a soft cap on the logits. Source: transformers' models/recurrent_gemma.
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/hybrid.h"
#include "models/layers/rg_lru.h"

namespace berth {
namespace {

// block_types over and over.
std::vector<std::string> RepeatBlockTypes(ConfigReader& config, int64_t num_layers) {
  const std::vector<std::string> pattern = config.StringListOr("block_types", {"recurrent", "recurrent", "attention"});
  config.Require(!pattern.empty(), "block_types", "is empty");
  std::vector<std::string> types;
  for (int64_t i = 0; i < num_layers && !pattern.empty(); ++i) types.push_back(pattern[i % pattern.size()]);
  for (const std::string& type : types) {
    config.Require(type == "recurrent" || type == "attention", "block_types",
                   "holds something other than recurrent and attention");
  }
  return types;
}

RgLruConfig ReadRecurrence(ConfigReader& config, const TransformerConfig& t) {
  RgLruConfig c = {.hidden = t.hidden,
                   .width = config.IntOr("lru_width", t.hidden, 1, kMaxDimension),
                   .blocks = t.q_heads,
                   .kernel = config.IntOr("conv1d_width", 4, 2, 64)};
  config.Require(c.width % c.blocks == 0, "lru_width", "is not a multiple of num_attention_heads");
  return c;
}

}  // namespace

std::unique_ptr<Model> BuildRecurrentGemma(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig t = ReadTransformer(config, {.tied_head = true});
  t.head_dim = t.hidden / t.q_heads;  // a head_dim in the file changes nothing
  config.Require(t.head_dim > 0, "hidden_size", "is less than num_attention_heads");
  config.RefuseUnless("hidden_activation", "gelu_pytorch_tanh");
  t.activation = ops::Activation::kGeluTanh;
  t.intermediate /= 2;  // the configuration counts gate and up together
  config.Require(t.intermediate > 0, "intermediate_size", "is halved to nothing");
  t.mlp_bias = true;
  t.qkv_bias = config.BoolOr("attention_bias", false);
  t.output_bias = true;
  t.norm_adds_one = true;
  // The reference keeps this factor in bfloat16 whatever the model's type.
  t.embedding_scale = SqrtEmbeddingScale(t.hidden, DType::kBFloat16);
  t.logit_softcap = config.DoubleOr("logits_soft_cap", 30, 1e-6, 1e9);
  t.windows.assign(t.num_layers, config.IntOr("attention_window_size", 2048, 1, kMaxWindow));
  ReadSharedRotary(config, weights, {.default_partial_rotary_factor = 0.5, .rotates_partly = true}, {}, &t);
  const std::vector<std::string> types = RepeatBlockTypes(config, t.num_layers);
  RgLruConfig recurrence = ReadRecurrence(config, t);
  if (!config.status().ok()) return nullptr;

  DecoderModel::Parts parts = LoadEmbeddingAndHead(weights, t, "model.final_norm");
  for (int i = 0; i < static_cast<int>(t.num_layers); ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    recurrence.layer = i;
    std::unique_ptr<Mixer> mixer;
    if (types[i] == "recurrent") {
      mixer = RgLruMixer::Load(weights, prefix + "temporal_block.", recurrence);
    } else {
      mixer = LoadAttention(weights, prefix + "temporal_block.", t, i);
    }
    parts.layers.push_back(LoadHybridBlock(weights, prefix, t, std::move(mixer),
                                           LoadDenseMlp(weights, prefix + "mlp_block.", t),
                                           {.mixer = "temporal_pre_norm", .mlp = "channel_pre_norm"}));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace berth
