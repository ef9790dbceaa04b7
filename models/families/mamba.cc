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
  Mamba2Config c = ReadMamba2(config, hidden, config.DoubleOr("layer_norm_epsilon", 1e-5, 0, 1), kPlainMamba2Fields);
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
  TransformerConfig t;
  t.vocab_size = config.Int("vocab_size", 1, kMaxVocabulary);
  t.hidden = mixer.hidden;
  t.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers);
  t.norm_eps = config.DoubleOr("layer_norm_epsilon", 1e-5, 0, 1);
  t.tied_head = config.BoolOr("tie_word_embeddings", tied_by_default);
  const bool float32_residual = config.BoolOr("residual_in_fp32", true);
  if (!config.status().ok()) return nullptr;

  // The first checkpoints call it embedding, transformers embeddings.
  const bool first = weights.Has("backbone.embedding.weight");
  DecoderModel::Parts parts =
      LoadEmbeddingAndHead(weights, t, "backbone.norm_f", first ? "backbone.embedding" : "backbone.embeddings");
  parts.float32_residual = float32_residual;
  for (int i = 0; i < static_cast<int>(t.num_layers); ++i) {
    const std::string prefix = absl::StrCat("backbone.layers.", i, ".");
    mixer.layer = i;
    auto block =
        std::make_unique<Block>(weights.options().dtype, MixerType::Load(weights, prefix + "mixer.", mixer), nullptr);
    block->input_norm = LoadNormOf(weights, prefix + "norm", t);
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
