// t5: pre-norm layers with root-mean-square norms, no biases, unscaled scores with a bias by distance that layer 0's
// table gives to every layer of its side. Source: transformers' models/t5.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index.h>
#include <ATen/ops/log.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/families/encoder_decoder.h"
#include "models/families/family.h"
#include "models/families/transformer.h"

namespace berth {
namespace {

struct T5Config {
  int64_t vocab_size, hidden, head_dim, heads, intermediate;
  int64_t encoder_layers, decoder_layers;
  int64_t num_buckets, max_distance;
  double norm_eps;
  bool scale_outputs;  // of the decoder, by hidden^-0.5
  bool gated;
  ops::Activation activation;
};

T5Config ReadT5(ConfigReader& config) {
  T5Config c;
  c.vocab_size = config.Int("vocab_size", 1, kMaxVocabulary);
  c.hidden = config.IntOr("d_model", 512, 1, kMaxDimension);
  c.head_dim = config.IntOr("d_kv", 64, 1, kMaxDimension);
  c.heads = config.IntOr("num_heads", 8, 1, kMaxHeads);
  c.intermediate = config.IntOr("d_ff", 2048, 1, kMaxDimension);
  c.encoder_layers = config.IntOr("num_layers", 6, 1, kMaxLayers);
  c.decoder_layers = config.IntOr("num_decoder_layers", c.encoder_layers, 1, kMaxLayers);
  c.num_buckets = config.IntOr("relative_attention_num_buckets", 32, 4, kMaxDimension);
  c.max_distance = config.IntOr("relative_attention_max_distance", 128, 1, kMaxDimension);
  config.Require(c.num_buckets % 4 == 0, "relative_attention_num_buckets", "is not a multiple of 4");
  config.Require(c.max_distance > c.num_buckets / 2, "relative_attention_max_distance",
                 "is not above half of relative_attention_num_buckets");
  c.norm_eps = config.DoubleOr("layer_norm_epsilon", 1e-6, 0, 1);
  // The class ties always; what tie_word_embeddings still says is whether the outputs are scaled.
  c.scale_outputs = config.BoolOr("scale_decoder_outputs", config.BoolOr("tie_word_embeddings", true));
  const std::string projection = config.StringOr("feed_forward_proj", "relu");
  config.RefuseUnless("feed_forward_proj", "relu", "gelu", "gelu_new", "silu", "gated-relu", "gated-gelu",
                      "gated-silu");
  absl::string_view name = projection;
  const bool gated = absl::ConsumePrefix(&name, "gated-");
  // What files may say beside it wins. "gated-gelu" means gelu_new, plain "gelu" the exact one.
  c.gated = config.BoolOr("is_gated_act", gated);
  c.activation = ReadActivation(config, "dense_act_fn", gated && name == "gelu" ? "gelu_new" : name);
  return c;
}

// Buckets of the distances key - query in [-reach, reach]: exact near 0, then logarithmic up to max_distance, all
// beyond alike. By the reference's operations in its order, since a last bit of a logarithm moves a bucket's border.
at::Tensor BucketsOf(const at::Tensor& distances, bool bidirectional, int64_t num_buckets, int64_t max_distance) {
  at::Tensor buckets = at::zeros_like(distances);
  at::Tensor steps;
  if (bidirectional) {
    num_buckets /= 2;
    buckets = (distances > 0).to(at::kLong) * num_buckets;
    steps = distances.abs();
  } else {
    steps = -at::minimum(distances, at::zeros_like(distances));
  }
  const int64_t exact = num_buckets / 2;
  const double log_range = std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const at::Tensor log_steps =
      at::log(steps.to(at::kFloat) / exact) / log_range * static_cast<double>(num_buckets - exact);
  const at::Tensor far = at::minimum(log_steps.to(at::kLong) + exact, at::full_like(steps, num_buckets - 1));
  return buckets + at::where(steps < exact, steps, far);
}

// table: [num_buckets, heads] -> [heads, 2 * reach + 1], as the kernels index it.
at::Tensor DistanceBias(const at::Tensor& table, bool bidirectional, const T5Config& c) {
  const at::Tensor distances = at::arange(-c.max_distance, c.max_distance + 1, at::TensorOptions().dtype(at::kLong));
  const at::Tensor buckets = BucketsOf(distances, bidirectional, c.num_buckets, c.max_distance);
  return at::index(table, {buckets.to(table.device())}).transpose(0, 1).contiguous();
}

LinearWeights LoadProducts(WeightLoader& weights, const T5Config& c, const std::string& prefix, const char* letters) {
  std::vector<LinearPart> parts;
  for (const char* letter = letters; *letter != '\0'; ++letter) {
    parts.push_back({.name = absl::StrCat(prefix, absl::string_view(letter, 1)), .out = c.heads * c.head_dim});
  }
  return LoadLinear(weights, c.hidden, parts);
}

LinearWeights LoadOutput(WeightLoader& weights, const T5Config& c, const std::string& prefix) {
  return LoadLinear(weights, c.heads * c.head_dim, {{.name = prefix + "o", .out = c.hidden}});
}

std::unique_ptr<FeedForward> LoadT5Mlp(WeightLoader& weights, const T5Config& c, const std::string& prefix) {
  const MlpConfig config = {.hidden = c.hidden, .intermediate = c.intermediate, .activation = c.activation};
  if (c.gated) return LoadGatedMlp(weights, prefix, config, {.gate = "wi_0", .up = "wi_1", .down = "wo"});
  return LoadMlp(weights, prefix, config, {.gate = "", .up = "wi", .down = "wo"});
}

// The bias of one side, shared by its layers.
at::Tensor LoadBias(WeightLoader& weights, const T5Config& c, const std::string& side, bool bidirectional) {
  const at::Tensor table = weights.GetFloat32(side + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                                              {c.num_buckets, c.heads});
  return DistanceBias(table, bidirectional, c);
}

void LoadEncoderLayers(WeightLoader& weights, const T5Config& c, EncoderDecoderModel::Parts* parts) {
  const at::Tensor bias = LoadBias(weights, c, "encoder", /*bidirectional=*/true);
  for (int64_t i = 0; i < c.encoder_layers; ++i) {
    const std::string prefix = absl::StrCat("encoder.block.", i, ".layer.");
    EncoderLayer& layer = parts->encoder_layers.emplace_back();
    layer.attention.shape = {.q_heads = c.heads, .head_dim = c.head_dim, .distance_bias = bias};
    layer.attention.qkv = LoadProducts(weights, c, prefix + "0.SelfAttention.", "qkv");
    layer.attention.output = LoadOutput(weights, c, prefix + "0.SelfAttention.");
    layer.attention_norm = LoadNorm(weights, prefix + "0.layer_norm.weight", c.hidden, c.norm_eps);
    layer.mlp = LoadT5Mlp(weights, c, prefix + "1.DenseReluDense.");
    layer.mlp_norm = LoadNorm(weights, prefix + "1.layer_norm.weight", c.hidden, c.norm_eps);
  }
}

void LoadDecoderLayers(WeightLoader& weights, const T5Config& c, EncoderDecoderModel::Parts* parts) {
  const at::Tensor bias = LoadBias(weights, c, "decoder", /*bidirectional=*/false);
  for (int i = 0; i < static_cast<int>(c.decoder_layers); ++i) {
    const std::string prefix = absl::StrCat("decoder.block.", i, ".layer.");
    const auto norm = [&](const char* name) { return LoadNorm(weights, prefix + name, c.hidden, c.norm_eps); };
    const ops::BidirectionalAttentionShape shape = {.layer = i, .q_heads = c.heads, .head_dim = c.head_dim};
    ops::BidirectionalAttentionShape biased = shape;
    biased.distance_bias = bias;
    CrossDecoderLayer& layer = parts->decoder_layers.emplace_back();
    const std::string self = prefix + "0.SelfAttention.";
    layer.attention =
        std::make_unique<BiasedAttention>(biased, LoadProducts(weights, c, self, "qkv"), LoadOutput(weights, c, self));
    layer.attention_norm = norm("0.layer_norm.weight");
    const std::string cross = prefix + "1.EncDecAttention.";
    layer.cross =
        std::make_unique<CrossAttention>(shape, CrossAttention::Weights{.q = LoadProducts(weights, c, cross, "q"),
                                                                        .kv = LoadProducts(weights, c, cross, "kv"),
                                                                        .output = LoadOutput(weights, c, cross)});
    layer.cross_norm = norm("1.layer_norm.weight");
    layer.mlp = LoadT5Mlp(weights, c, prefix + "2.DenseReluDense.");
    layer.mlp_norm = norm("2.layer_norm.weight");
  }
}

}  // namespace

std::unique_ptr<Model> BuildT5(ConfigReader& config, WeightLoader& weights) {
  const T5Config c = ReadT5(config);
  if (!config.status().ok()) return nullptr;
  EncoderDecoderModel::Parts parts;
  parts.dtype = weights.options().dtype;
  LoadSharedEmbeddings(weights, weights, c.vocab_size, c.hidden, /*head_bias=*/{}, &parts);
  LoadEncoderLayers(weights, c, &parts);
  parts.encoder_norm = LoadNorm(weights, "encoder.final_layer_norm.weight", c.hidden, c.norm_eps);
  LoadDecoderLayers(weights, c, &parts);
  parts.head.norm = LoadNorm(weights, "decoder.final_layer_norm.weight", c.hidden, c.norm_eps);
  if (c.scale_outputs) {
    parts.head.norm.weight = at::mul(parts.head.norm.weight, 1 / std::sqrt(static_cast<double>(c.hidden)));
  }
  // The first checkpoints have a table for cross-attention too, which their class never read.
  weights.IgnoreUnder("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight");
  return std::make_unique<EncoderDecoderModel>(std::move(parts));
}

}  // namespace berth
