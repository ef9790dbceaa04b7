// mamba, falcon_mamba and mamba2: a norm and a mixer per layer, nothing else. Source: transformers' models of these
// names.
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/family.h"
#include "models/families/hybrid.h"
#include "models/layers/mamba_mixer.h"

namespace berth {
namespace {

Mamba2Config ReadMamba2Mixer(ConfigReader& config) {
  const int64_t hidden = config.Int("hidden_size", 1, kMaxDimension);
  Mamba2Config c = ReadMamba2(config, hidden, config.DoubleOr("layer_norm_epsilon", 1e-5, 0, 1),
                              {.heads = "num_heads",
                               .head_dim = "head_dim",
                               .state_dim = "state_size",
                               .groups = "n_groups",
                               .kernel = "conv_kernel",
                               .conv_bias = "use_conv_bias",
                               .proj_bias = "use_bias",
                               .default_state_dim = 128,
                               .default_groups = 8});
  ReadTimeStepLimit(config, &c);
  const int64_t expand = config.IntOr("expand", 2, 1, 1024);
  config.Require(expand * c.hidden == c.inner(), "num_heads", "times head_dim is not expand * hidden_size");
  return c;
}

MambaConfig ReadMambaMixer(ConfigReader& config) {
  MambaConfig c;
  c.hidden = config.Int("hidden_size", 1, kMaxDimension);
  c.inner = config.IntOr("intermediate_size", config.IntOr("expand", 2, 1, 1024) * c.hidden, 1, kMaxDimension);
  c.state_dim = config.Int("state_size", 1, kMaxDimension);
  c.dt_rank = config.IntOrAuto("time_step_rank", (c.hidden + 15) / 16, 1, kMaxDimension);
  c.kernel = config.IntOr("conv_kernel", 4, 2, 64);
  c.conv_bias = config.BoolOr("use_conv_bias", true);
  c.proj_bias = config.BoolOr("use_bias", false);
  return c;
}

// The model around mixers of either kind.
template <typename MixerType, typename Config>
std::unique_ptr<Model> Build(ConfigReader& config, WeightLoader& weights, Config mixer, bool tied_by_default) {
  config.RefuseUnless("hidden_act", "silu");
  const int64_t vocab_size = config.Int("vocab_size", 1, kMaxVocabulary);
  const int64_t num_layers = config.Int("num_hidden_layers", 1, kMaxLayers);
  const double norm_eps = config.DoubleOr("layer_norm_epsilon", 1e-5, 0, 1);
  const bool tied = config.BoolOr("tie_word_embeddings", tied_by_default);
  DecoderModel::Parts parts;
  parts.float32_residual = config.BoolOr("residual_in_fp32", true);
  if (!config.status().ok()) return nullptr;

  // The first checkpoints call it embedding, transformers embeddings.
  const char* embedding =
      weights.Has("backbone.embedding.weight") ? "backbone.embedding.weight" : "backbone.embeddings.weight";
  parts.embedding = weights.Get(embedding, {vocab_size, mixer.hidden});
  parts.head.norm = LoadNorm(weights, "backbone.norm_f.weight", mixer.hidden, norm_eps);
  if (tied) {
    parts.head.linear.weight = parts.embedding;
    weights.IgnoreUnder("lm_head.weight");
  } else {
    parts.head.linear = LoadLinear(weights, mixer.hidden, {{.name = "lm_head", .out = vocab_size}});
  }
  for (int i = 0; i < static_cast<int>(num_layers); ++i) {
    const std::string prefix = absl::StrCat("backbone.layers.", i, ".");
    mixer.layer = i;
    auto block =
        std::make_unique<Block>(weights.options().dtype, MixerType::Load(weights, prefix + "mixer.", mixer), nullptr);
    block->input_norm = LoadNorm(weights, prefix + "norm.weight", mixer.hidden, norm_eps);
    parts.layers.push_back(std::move(block));
  }
  return std::make_unique<DecoderModel>(std::move(parts));
}

}  // namespace

std::unique_ptr<Model> BuildMamba(ConfigReader& config, WeightLoader& weights) {
  return Build<MambaMixer>(config, weights, ReadMambaMixer(config), /*tied_by_default=*/true);
}

std::unique_ptr<Model> BuildFalconMamba(ConfigReader& config, WeightLoader& weights) {
  MambaConfig mixer = ReadMambaMixer(config);
  mixer.norms = MambaConfig::Norms::kWeightless;
  mixer.norm_eps = config.DoubleOr("mixer_rms_eps", 1e-6, 0, 1);
  return Build<MambaMixer>(config, weights, mixer, /*tied_by_default=*/true);
}

std::unique_ptr<Model> BuildMamba2(ConfigReader& config, WeightLoader& weights) {
  return Build<Mamba2Mixer>(config, weights, ReadMamba2Mixer(config), /*tied_by_default=*/false);
}

}  // namespace berth
