// bart (learned positions, norms after the sums) and m2m_100 (sinusoids, norms before). Their layers have the same
// names. Source: transformers' models/{bart,m2m_100}.
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/encoder_decoder.h"
#include "models/families/family.h"
#include "models/families/transformer.h"

namespace berth {
namespace {

constexpr double kNormEps = 1e-5;
constexpr int64_t kPositionOffset = 2;  // rows that fairseq's tables begin with

struct BartConfig {
  struct Side {
    int64_t layers, heads, intermediate;
  };
  int64_t vocab_size, hidden;
  Side encoder, decoder;
  bool scale_embedding;
  ops::Activation activation;
};

BartConfig::Side ReadSide(ConfigReader& config, const std::string& side, int64_t hidden) {
  BartConfig::Side s;
  s.layers = config.Int(side + "_layers", 1, kMaxLayers);
  s.heads = config.Int(side + "_attention_heads", 1, kMaxHeads);
  s.intermediate = config.Int(side + "_ffn_dim", 1, kMaxDimension);
  config.Require(hidden % s.heads == 0, side + "_attention_heads", "does not divide d_model");
  return s;
}

BartConfig ReadBart(ConfigReader& config, absl::string_view activation, bool scale_embedding) {
  BartConfig c;
  c.vocab_size = config.Int("vocab_size", 1, kMaxVocabulary);
  c.hidden = config.Int("d_model", 4, kMaxDimension);
  c.encoder = ReadSide(config, "encoder", c.hidden);
  c.decoder = ReadSide(config, "decoder", c.hidden);
  c.scale_embedding = config.BoolOr("scale_embedding", scale_embedding);
  c.activation = ReadActivation(config, "activation_function", activation);
  return c;
}

// Reads the layers of one model: names and shapes are the same in every one.
class BartLoader {
 public:
  BartLoader(const BartConfig& config, WeightLoader& weights) : c_(config), weights_(weights) {}

  EncoderLayer LoadEncoderLayer(int64_t index) {
    const std::string prefix = absl::StrCat("encoder.layers.", index, ".");
    EncoderLayer layer;
    layer.attention.shape = Shape(0, c_.encoder);
    layer.attention.qkv = Products(prefix + "self_attn.", {"q_proj", "k_proj", "v_proj"});
    layer.attention.output = Products(prefix + "self_attn.", {"out_proj"});
    layer.attention_norm = NormOf(prefix + "self_attn_layer_norm");
    layer.mlp = Mlp(prefix, c_.encoder);
    layer.mlp_norm = NormOf(prefix + "final_layer_norm");
    return layer;
  }

  CrossDecoderLayer LoadDecoderLayer(int index) {
    const std::string prefix = absl::StrCat("decoder.layers.", index, ".");
    const ops::BidirectionalAttentionShape shape = Shape(index, c_.decoder);
    CrossDecoderLayer layer;
    const AttentionConfig self = {.layer = index,
                                  .q_heads = shape.q_heads,
                                  .kv_heads = shape.q_heads,
                                  .head_dim = shape.head_dim,
                                  .scale = shape.scale};
    Attention::Weights parts;
    parts.qkv = Products(prefix + "self_attn.", {"q_proj", "k_proj", "v_proj"});
    parts.output = Products(prefix + "self_attn.", {"out_proj"});
    layer.attention = std::make_unique<Attention>(self, std::move(parts));
    layer.attention_norm = NormOf(prefix + "self_attn_layer_norm");
    const std::string cross = prefix + "encoder_attn.";
    layer.cross =
        std::make_unique<CrossAttention>(shape, CrossAttention::Weights{.q = Products(cross, {"q_proj"}),
                                                                        .kv = Products(cross, {"k_proj", "v_proj"}),
                                                                        .output = Products(cross, {"out_proj"})});
    layer.cross_norm = NormOf(prefix + "encoder_attn_layer_norm");
    layer.mlp = Mlp(prefix, c_.decoder);
    layer.mlp_norm = NormOf(prefix + "final_layer_norm");
    return layer;
  }

  Norm NormOf(const std::string& name) { return LoadLayerNorm(weights_, name, c_.hidden, kNormEps, /*has_bias=*/true); }

 private:
  ops::BidirectionalAttentionShape Shape(int layer, const BartConfig::Side& side) const {
    const int64_t head_dim = c_.hidden / side.heads;
    return {.layer = layer,
            .q_heads = side.heads,
            .head_dim = head_dim,
            .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
  }
  LinearWeights Products(const std::string& prefix, std::initializer_list<const char*> names) {
    std::vector<LinearPart> parts;
    for (const char* name : names) parts.push_back({.name = prefix + name, .out = c_.hidden, .has_bias = true});
    return LoadLinear(weights_, c_.hidden, parts);
  }
  std::unique_ptr<FeedForward> Mlp(const std::string& prefix, const BartConfig::Side& side) {
    return LoadMlp(weights_, prefix,
                   {.hidden = c_.hidden, .intermediate = side.intermediate, .bias = true, .activation = c_.activation},
                   {.gate = "", .up = "fc1", .down = "fc2"});
  }

  const BartConfig& c_;
  WeightLoader& weights_;
};

// Embeddings and layers; the rest is the family's.
EncoderDecoderModel::Parts LoadCommon(const BartConfig& c, WeightLoader& root, WeightLoader& weights,
                                      const at::Tensor& head_bias) {
  EncoderDecoderModel::Parts parts;
  parts.dtype = weights.options().dtype;
  LoadSharedEmbeddings(root, weights, c.vocab_size, c.hidden, head_bias, &parts);
  if (c.scale_embedding) parts.embedding_scale = std::sqrt(static_cast<double>(c.hidden));
  BartLoader loader(c, weights);
  for (int64_t i = 0; i < c.encoder.layers; ++i) parts.encoder_layers.push_back(loader.LoadEncoderLayer(i));
  for (int i = 0; i < static_cast<int>(c.decoder.layers); ++i) {
    parts.decoder_layers.push_back(loader.LoadDecoderLayer(i));
  }
  return parts;
}

// Some checkpoints were saved from the model without its head.
WeightLoader ModelOf(const WeightLoader& root) { return root.UnderFirst({"model.", ""}, "shared.weight"); }

}  // namespace

std::unique_ptr<Model> BuildBart(ConfigReader& config, WeightLoader& root) {
  const BartConfig c = ReadBart(config, "gelu", /*scale_embedding=*/false);
  const int64_t positions = config.IntOr("max_position_embeddings", 1024, 1, kMaxDimension);
  if (!config.status().ok()) return nullptr;
  WeightLoader weights = ModelOf(root);
  const at::Tensor bias = root.GetOptional("final_logits_bias", {1, c.vocab_size});
  EncoderDecoderModel::Parts parts = LoadCommon(c, root, weights, bias.defined() ? bias.squeeze(0) : bias);
  parts.norm_side = NormSide::kAfterSum;
  const auto table = [&](const char* name) { return weights.Get(name, {positions + kPositionOffset, c.hidden}); };
  parts.positions = std::make_unique<LearnedPositions>(table("encoder.embed_positions.weight"),
                                                       table("decoder.embed_positions.weight"), kPositionOffset);
  parts.position_limit = positions;
  BartLoader loader(c, weights);
  parts.encoder.embedding_norm = loader.NormOf("encoder.layernorm_embedding");
  parts.decoder.embedding_norm = loader.NormOf("decoder.layernorm_embedding");
  for (const char* name : {"encoder.version", "decoder.version"}) weights.IgnoreUnder(name);
  return std::make_unique<EncoderDecoderModel>(std::move(parts));
}

std::unique_ptr<Model> BuildM2m100(ConfigReader& config, WeightLoader& root) {
  const BartConfig c = ReadBart(config, "relu", /*scale_embedding=*/true);
  const int64_t padding = config.IntOr("pad_token_id", 1, 0, kMaxVocabulary);
  if (!config.status().ok()) return nullptr;
  WeightLoader weights = ModelOf(root);
  EncoderDecoderModel::Parts parts = LoadCommon(c, root, weights, /*head_bias=*/{});
  const at::ScalarType type = parts.dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16;
  parts.positions = std::make_unique<SinusoidalPositions>(c.hidden, padding, type, weights.options().device);
  BartLoader loader(c, weights);
  parts.encoder_norm = loader.NormOf("encoder.layer_norm");
  parts.head.norm = loader.NormOf("decoder.layer_norm");
  // Older checkpoints keep the sinusoids, which follow from the configuration.
  for (const char* side : {"encoder", "decoder"}) {
    weights.IgnoreUnder(absl::StrCat(side, ".embed_positions.weights"));
    weights.IgnoreUnder(absl::StrCat(side, ".version"));
  }
  return std::make_unique<EncoderDecoderModel>(std::move(parts));
}

}  // namespace berth
