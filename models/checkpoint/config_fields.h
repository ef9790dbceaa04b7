// Fields of config.json that transformers has spelt in more than one way. Torch-free; pure functions.
#ifndef BERTH_MODELS_CHECKPOINT_CONFIG_FIELDS_H_
#define BERTH_MODELS_CHECKPOINT_CONFIG_FIELDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/checkpoint/json_config.h"

namespace berth {

// Rotary position embedding, as transformers' modeling_rope_utils.py standardizes it. Fields that the file does not
// give keep their default.
struct RopeConfig {
  double theta = 10000;
  std::string type = "default";
  double partial_rotary_factor = 1;
  double factor = 1;                   // every type but "default"
  int64_t max_positions = 0;           // dynamic: max_position_embeddings; 0: not said
  int64_t original_max_positions = 0;  // llama3, yarn, longrope; max_position_embeddings where not said; 0: neither
  double attention_factor = 0;         // yarn, longrope; 0: as the type computes it
  double beta_fast = 32;               // yarn
  double beta_slow = 1;                // yarn
  double mscale = 0;                   // yarn; 0: none
  double mscale_all_dim = 0;           // yarn; 0: none
  bool truncate = true;                // yarn: round the correction range to integers
  double low_freq_factor = 1;          // llama3
  double high_freq_factor = 4;         // llama3
  std::vector<double> short_factor;    // longrope
  std::vector<double> long_factor;     // longrope

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct RopeFields {
  double default_theta = 10000;  // where no theta is given
  double default_partial_rotary_factor = 1;
  // Whether the family's "default" type reads the factor; other types always do. As in transformers, the factor outside
  // of rope_parameters may be without effect.
  bool rotates_partly = false;
  bool reads_outer_factor = true;
  // phi3: the trained length where none is given outside of rope_parameters. 0: that within.
  int64_t default_trained_length = 0;
  // Whose parameters, where rope_parameters holds one object per layer type; "": it does not.
  absl::string_view layer_type = "";
  // What older files call this layer type's theta, and whether their rope_scaling is meant for it
  // (gemma3's sliding layers: "rope_local_base_freq", false).
  absl::string_view theta_key = "rope_theta";
  bool use_rope_scaling = true;
  // The types that the family implements; any other is refused. "type" and "mrope" of older files are understood.
  std::vector<absl::string_view> types = {"default"};
  // What older files of the family call longrope (phi3: "su", "yarn").
  std::vector<absl::string_view> longrope_names = {};
};

// From `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling`. Errors stick to `r`.
RopeConfig ReadRope(ConfigReader& r, const RopeFields& fields = {});

// `dtype` (transformers 5) or `torch_dtype`: "float32", "bfloat16", "float16"...; "": not said.
std::string ReadDTypeName(ConfigReader& r);

}  // namespace berth

#endif  // BERTH_MODELS_CHECKPOINT_CONFIG_FIELDS_H_
