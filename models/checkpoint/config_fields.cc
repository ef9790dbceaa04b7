#include "models/checkpoint/config_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 32;

// The object that describes this layer type; {} where no file version has one.
ConfigReader RopeObject(ConfigReader& r, const RopeFields& fields) {
  // As in transformers, an empty rope_scaling counts as absent, and any other hides rope_parameters.
  ConfigReader scaling = r.ObjectOr("rope_scaling");
  const bool scaled = scaling.Has("rope_type") || scaling.Has("type") || scaling.Has("factor") ||
                      scaling.Has("rope_theta") || (!fields.layer_type.empty() && scaling.Has(fields.layer_type));
  ConfigReader shared = scaled ? scaling : r.ObjectOr("rope_parameters");
  if (!fields.layer_type.empty() && shared.Has(fields.layer_type)) return shared.Object(fields.layer_type);
  if (scaled && !fields.use_rope_scaling) return r.ObjectOr("(none)");
  return shared;
}

std::vector<absl::string_view> NeededFields(absl::string_view rope_type) {
  if (rope_type == "linear" || rope_type == "dynamic" || rope_type == "yarn") return {"factor"};
  if (rope_type == "llama3") return {"factor", "low_freq_factor", "high_freq_factor"};
  return {};
}

}  // namespace

RopeConfig ReadRope(ConfigReader& r, const RopeFields& fields) {
  ConfigReader rope = RopeObject(r, fields);
  const double tiny = 1e-6;
  const double huge = 1e12;

  RopeConfig c;
  c.theta = rope.DoubleOr("rope_theta", r.DoubleOr(fields.theta_key, fields.default_theta, tiny, huge), tiny, huge);
  c.type = rope.StringOr("rope_type", rope.StringOr("type", c.type));
  // "mrope" was the older name for "default" with mrope_section, which text alone does not need.
  if (c.type == "mrope") c.type = "default";
  const auto& older = fields.longrope_names;
  if (std::find(older.begin(), older.end(), c.type) != older.end()) c.type = "longrope";
  if (std::find(fields.types.begin(), fields.types.end(), c.type) == fields.types.end()) {
    rope.RefuseUnless(rope.Has("rope_type") ? "rope_type" : "type", absl::StrJoin(fields.types, " or "));
  }
  const double outer = r.DoubleOr("partial_rotary_factor", fields.default_partial_rotary_factor, 0, 1);
  c.partial_rotary_factor = rope.DoubleOr(
      "partial_rotary_factor", fields.reads_outer_factor ? outer : fields.default_partial_rotary_factor, 0, 1);
  if (c.type == "default" && !fields.rotates_partly) c.partial_rotary_factor = 1;
  c.attention_factor = rope.DoubleOr("attention_factor", c.attention_factor, 0, huge);
  c.beta_fast = rope.DoubleOr("beta_fast", c.beta_fast, tiny, huge);
  c.beta_slow = rope.DoubleOr("beta_slow", c.beta_slow, tiny, huge);
  c.mscale = rope.DoubleOr("mscale", c.mscale, 0, huge);
  c.mscale_all_dim = rope.DoubleOr("mscale_all_dim", c.mscale_all_dim, 0, huge);
  c.truncate = rope.BoolOr("truncate", c.truncate);
  c.low_freq_factor = rope.DoubleOr("low_freq_factor", c.low_freq_factor, tiny, huge);
  c.high_freq_factor = rope.DoubleOr("high_freq_factor", c.high_freq_factor, tiny, huge);
  c.short_factor = rope.DoubleListOr("short_factor", {}, tiny, huge);
  c.long_factor = rope.DoubleListOr("long_factor", {}, tiny, huge);
  c.max_positions = r.IntOr("max_position_embeddings", 0, 0, kMaxPositions);
  // phi3 keeps the trained length outside; transformers gives that priority.
  const int64_t trained = rope.IntOr("original_max_position_embeddings", c.max_positions, 0, kMaxPositions);
  c.original_max_positions =
      r.IntOr("original_max_position_embeddings",
              fields.default_trained_length > 0 ? fields.default_trained_length : trained, 0, kMaxPositions);
  const bool stretches = c.type == "yarn" || c.type == "longrope";
  const double ratio = stretches && c.original_max_positions > 0
                           ? static_cast<double>(c.max_positions) / static_cast<double>(c.original_max_positions)
                           : c.factor;
  c.factor = rope.DoubleOr("factor", std::max(ratio, tiny), tiny, huge);
  for (absl::string_view key : NeededFields(c.type)) rope.Require(rope.Has(key), key, "is needed by this rope_type");
  rope.Require(c.original_max_positions > 0 || !(stretches || c.type == "llama3"), "original_max_position_embeddings",
               "is needed by this rope_type");
  rope.Require(c.max_positions > 0 || c.type != "dynamic", "rope_type", "needs max_position_embeddings");
  return c;
}

std::string ReadDTypeName(ConfigReader& r) {
  const std::string name = r.StringOr("dtype", r.StringOr("torch_dtype", ""));
  return std::string(absl::StripPrefix(name, "torch."));
}

}  // namespace berth
