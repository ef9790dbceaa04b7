// A model's config.json, read with every getter that families use. What a getter returns is in its range, even after an
// error.
#include <cmath>

#include "models/checkpoint/config_fields.h"
#include "models/checkpoint/json_config.h"
#include "tests/fuzz/fuzz_input.h"

namespace berth {
namespace {

void ReadFields(ConfigReader r) {
  const int64_t size = r.Int("hidden_size", 1, 1 << 20);
  FUZZ_CHECK(size >= 1 && size <= 1 << 20, "hidden_size");
  FUZZ_CHECK(r.IntOr("num_hidden_layers", 2, 1, 1024) >= 1, "num_hidden_layers");
  FUZZ_CHECK(r.IntOrAuto("mamba_dt_rank", 3, 1, 64) <= 64, "mamba_dt_rank");
  for (const int64_t id : r.IntOrIntList("eos_token_id", 0, 1 << 20)) FUZZ_CHECK(id >= 0, "eos_token_id");
  for (const int64_t value : r.IntListOr("intermediate_size", {5}, 1, 1 << 20)) FUZZ_CHECK(value > 0, "sizes");
  const double eps = r.DoubleOr("rms_norm_eps", 1e-6, 0, 1);
  FUZZ_CHECK(eps >= 0 && eps <= 1, "rms_norm_eps");
  for (const double limit : r.DoubleListOr("time_step_limit", {0, INFINITY})) FUZZ_CHECK(!std::isnan(limit), "limit");
  r.BoolOr("tie_word_embeddings", false);
  r.StringListOr("layer_types", {});
  r.IsNull("sliding_window");
  ReadDTypeName(r);
  RopeFields by_type = {.layer_type = "full_attention"};
  by_type.types = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};
  for (const RopeFields& fields : {by_type, RopeFields{.types = by_type.types}}) {
    const RopeConfig rope = ReadRope(r, fields);
    FUZZ_CHECK(rope.theta > 0 && rope.factor > 0 && rope.partial_rotary_factor >= 0, rope.type);
  }
  r.RefuseUnless("hidden_act", "silu", "swish");
}

}  // namespace
}  // namespace berth

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = berth::JsonConfig::Parse(berth::TextOf(data, size), "config.json");
  if (!json.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(json.status()), json.status().ToString());
    return 0;
  }
  berth::ConfigReader config(*json);
  berth::ConfigReader text = config.ObjectOr("text_config");
  text.TakeFrom(config, "tie_word_embeddings");
  berth::ReadFields(text);
  berth::ReadFields(berth::ConfigReader(*json));
  return 0;
}
