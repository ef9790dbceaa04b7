#include "models/families/hybrid.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {

std::vector<std::string> ReadBlockTypes(ConfigReader& config, const std::vector<absl::string_view>& known,
                                        std::vector<std::string> fallback) {
  const char* const key = config.Has("layers_block_type") ? "layers_block_type" : "layer_types";
  std::vector<std::string> types = config.StringListOr(key, std::move(fallback));
  for (std::string& type : types) {
    if (type == "mamba") type = "linear_attention";
    if (type == "attention") type = "full_attention";
    config.Require(std::find(known.begin(), known.end(), type) != known.end(), key,
                   absl::StrCat("holds \"", type, "\", which this architecture does not have"));
  }
  return types;
}

void RequireLayers(ConfigReader& config, const std::vector<std::string>& types, int64_t num_layers) {
  config.Require(static_cast<int64_t>(types.size()) == num_layers, "num_hidden_layers",
                 absl::StrCat("is not the number of layer types, ", types.size()));
}

Mamba2Config ReadMamba2(ConfigReader& config, int64_t hidden, double norm_eps, const Mamba2Fields& fields) {
  Mamba2Config c;
  c.hidden = hidden;
  c.heads = config.IntOr(fields.heads, fields.default_heads, 1, kMaxHeads);
  if (fields.head_dim != nullptr) {
    c.head_dim = config.IntOr(fields.head_dim, 64, 1, kMaxDimension);
  } else {
    int64_t inner = config.IntOr(fields.expand, 2, 1, 1024) * hidden;
    if (fields.width != nullptr) inner = config.IntOr(fields.width, inner, 1, kMaxDimension);
    config.Require(inner % c.heads == 0, fields.heads, "does not divide the mixer's width");
    c.head_dim = std::max<int64_t>(1, inner / c.heads);
    if (fields.same_head_dim != nullptr) {
      config.Require(config.IntOrAuto(fields.same_head_dim, c.head_dim, 1, kMaxDimension) == c.head_dim,
                     fields.same_head_dim, absl::StrCat("is not the mixer's width divided by ", fields.heads));
    }
  }
  c.state_dim = config.IntOr(fields.state_dim, fields.default_state_dim, 1, kMaxDimension);
  c.groups = config.IntOr(fields.groups, fields.default_groups, 1, kMaxHeads);
  config.Require(c.heads % c.groups == 0, fields.heads, absl::StrCat("is not a multiple of ", fields.groups));
  c.kernel = config.IntOr(fields.kernel, 4, 2, 64);
  c.conv_bias = config.BoolOr(fields.conv_bias, true);
  c.in_bias = c.out_bias = config.BoolOr(fields.proj_bias, false);
  c.norm_groups = c.groups;
  c.norm_eps = norm_eps;
  return c;
}

void ReadTimeStepLimit(ConfigReader& config, Mamba2Config* mixer) {
  const std::vector<double> limit = config.DoubleListOr("time_step_limit", {0, ConfigReader::kAny}, 0);
  config.Require(limit.size() == 2 && limit[0] <= limit[1], "time_step_limit", "is not a pair [min, max]");
  if (limit.size() != 2) return;
  mixer->dt_min = limit[0];
  mixer->dt_max = limit[1];
}

std::unique_ptr<Block> LoadHybridBlock(WeightLoader& weights, const std::string& prefix, const TransformerConfig& c,
                                       std::unique_ptr<Mixer> mixer, std::unique_ptr<FeedForward> mlp,
                                       const HybridNorms& norms) {
  auto block = std::make_unique<Block>(weights.options().dtype, std::move(mixer), std::move(mlp));
  block->input_norm = LoadNormOf(weights, prefix + norms.mixer, c);
  block->pre_mlp_norm = LoadNormOf(weights, prefix + norms.mlp, c);
  return block;
}

}  // namespace berth
