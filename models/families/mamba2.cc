// mamba2: a norm and a mixer per layer, nothing else. Source: transformers' models/mamba2.
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/transformer.h"
#include "models/layers/mamba2_mixer.h"

namespace berth {
namespace {

Mamba2Config ReadMixer(ConfigReader& config) {
  Mamba2Config c;
  c.hidden = config.Int("hidden_size", 1, kMaxDimension);
  c.heads = config.Int("num_heads", 1, kMaxHeads);
  c.head_dim = config.Int("head_dim", 1, kMaxDimension);
  c.state_dim = config.Int("state_size", 1, kMaxDimension);
  c.groups = config.Int("n_groups", 1, kMaxHeads);
  c.kernel = config.IntOr("conv_kernel", 4, 2, 64);
  c.conv_bias = config.BoolOr("use_conv_bias", true);
  c.in_bias = c.out_bias = config.BoolOr("use_bias", false);
  c.norm_groups = 1;  // over all channels, whatever n_groups is
  c.gate_first = true;
  c.norm_eps = config.DoubleOr("layer_norm_epsilon", 1e-5, 0, 1);
  const std::vector<double> limit = config.DoubleListOr("time_step_limit", {0, ConfigReader::kAny}, 0);
  config.Require(limit.size() == 2 && limit[0] <= limit[1], "time_step_limit", "is not a pair [min, max]");
  if (limit.size() == 2) {
    c.dt_min = limit[0];
    c.dt_max = limit[1];
  }
  config.Require(c.heads % c.groups == 0, "num_heads", "is not a multiple of n_groups");
  const int64_t expand = config.IntOr("expand", 2, 1, 1024);
  config.Require(expand * c.hidden == c.inner(), "num_heads", "times head_dim is not expand * hidden_size");
  return c;
}

}  // namespace

std::unique_ptr<Model> BuildMamba2(ConfigReader& config, WeightLoader& weights) {
  config.RefuseUnless("hidden_act", "silu");
  config.RefuseUnless("quantization_config");
  const int64_t vocab_size = config.Int("vocab_size", 1, kMaxVocabulary);
  const int64_t num_layers = config.Int("num_hidden_layers", 1, kMaxLayers);
  const bool tied = config.BoolOr("tie_word_embeddings", false);
  Mamba2Config mixer = ReadMixer(config);
  DecoderModel::Parts parts;
  parts.float32_residual = config.BoolOr("residual_in_fp32", true);
  if (!config.status().ok()) return nullptr;

  // The first checkpoints call it embedding, transformers embeddings.
  const char* embedding =
      weights.Has("backbone.embedding.weight") ? "backbone.embedding.weight" : "backbone.embeddings.weight";
  parts.embedding = weights.Get(embedding, {vocab_size, mixer.hidden});
  parts.head.norm = LoadNorm(weights, "backbone.norm_f.weight", mixer.hidden, mixer.norm_eps);
  if (tied) {
    parts.head.linear.weight = parts.embedding;
    weights.IgnoreUnder("lm_head.weight");
  } else {
    parts.head.linear = LoadLinear(weights, mixer.hidden, {{.name = "lm_head", .out = vocab_size}});
  }
  for (int i = 0; i < static_cast<int>(num_layers); ++i) {
    const std::string prefix = absl::StrCat("backbone.layers.", i, ".");
    mixer.layer = i;
    auto layer =
        std::make_unique<Block>(weights.options().dtype, Mamba2Mixer::Load(weights, prefix + "mixer.", mixer), nullptr);
    layer->input_norm = LoadNorm(weights, prefix + "norm.weight", mixer.hidden, mixer.norm_eps);
    parts.layers.push_back(std::move(layer));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace berth
