// What the families that mix recurrences with attention share: the fields of their configurations, their blocks.
#ifndef BERTH_MODELS_FAMILIES_HYBRID_H_
#define BERTH_MODELS_FAMILIES_HYBRID_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/checkpoint/json_config.h"
#include "models/checkpoint/weight_loader.h"
#include "models/families/transformer.h"
#include "models/layers/block.h"
#include "models/layers/mamba2_mixer.h"

namespace berth {

// Reads the type of each layer from layers_block_type or layer_types; if neither is there, returns `fallback`.
// Translates the names of transformers before 5 ("mamba", "attention") to today's ("linear_attention",
// "full_attention"). Refuses types that are not in `known`.
std::vector<std::string> ReadBlockTypes(ConfigReader& config, const std::vector<absl::string_view>& known,
                                        std::vector<std::string> fallback);

// Requires one type for each layer.
void RequireLayers(ConfigReader& config, const std::vector<std::string>& types, int64_t num_layers);

// The names of a Mamba-2 mixer's fields in a configuration, and their defaults.
struct Mamba2Fields {
  const char* heads = "mamba_n_heads";
  const char* head_dim = nullptr;  // nullptr: expand * hidden / heads
  const char* state_dim = "mamba_d_state";
  const char* groups = "mamba_n_groups";
  const char* kernel = "mamba_d_conv";
  const char* expand = "mamba_expand";
  const char* width = nullptr;          // heads * head_dim, nullptr: expand * hidden
  const char* same_head_dim = nullptr;  // a redundant head_dim, which must be "auto" or the same number
  const char* conv_bias = "mamba_conv_bias";
  const char* proj_bias = "mamba_proj_bias";
  int64_t default_heads = 128;
  int64_t default_state_dim = 256;
  int64_t default_groups = 1;
};

// The names of mamba2. nemotron_h uses some of them.
inline constexpr Mamba2Fields kPlainMamba2Fields = {.heads = "num_heads",
                                                    .head_dim = "head_dim",
                                                    .state_dim = "state_size",
                                                    .groups = "n_groups",
                                                    .kernel = "conv_kernel",
                                                    .conv_bias = "use_conv_bias",
                                                    .proj_bias = "use_bias",
                                                    .default_state_dim = 128,
                                                    .default_groups = 8};

// Reads everything except the limits of the time step. The gated norm works per group, as in the original (mamba_ssm).
Mamba2Config ReadMamba2(ConfigReader& config, int64_t hidden, double norm_eps, const Mamba2Fields& fields = {});

// Reads time_step_limit, a pair.
void ReadTimeStepLimit(ConfigReader& config, Mamba2Config* mixer);

struct HybridNorms {
  const char* mixer = "input_layernorm";
  const char* mlp = "pre_ff_layernorm";
};

// A mixer and a feed-forward, each behind a norm. Either part may be null.
std::unique_ptr<Block> LoadHybridBlock(WeightLoader& weights, const std::string& prefix, const TransformerConfig& c,
                                       std::unique_ptr<Mixer> mixer, std::unique_ptr<FeedForward> mlp,
                                       const HybridNorms& norms = {});

}  // namespace berth

#endif  // BERTH_MODELS_FAMILIES_HYBRID_H_
