// Two parts: generation_config.json and config.json.
#include <algorithm>

#include "models/generation_config.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> parts = berth::PartsOf(data, size, 2);
  const auto config = berth::JsonConfig::Parse(parts[1].empty() ? "{}" : parts[1], "config.json");
  if (!config.ok()) return -1;
  berth::WriteFile(berth::FuzzFolder() + "/generation_config.json", parts[0]);
  std::vector<std::string> warnings;
  const auto defaults = berth::ReadGenerationDefaults(berth::FuzzFolder(), *config, &warnings);
  if (!defaults.ok()) return 0;
  const std::vector<int32_t>& ids = defaults->eos_token_ids;
  FUZZ_CHECK(std::is_sorted(ids.begin(), ids.end()) && std::adjacent_find(ids.begin(), ids.end()) == ids.end(), "ids");
  FUZZ_CHECK(ids.empty() || ids.front() >= 0, "a negative id");
  FUZZ_CHECK(!defaults->top_p || (*defaults->top_p >= 0 && *defaults->top_p <= 1), "top_p");
  FUZZ_CHECK(!defaults->temperature || *defaults->temperature >= 0, "temperature");
  FUZZ_CHECK(warnings.size() <= 2, "warnings");
  FUZZ_CHECK(!defaults->num_beams || *defaults->num_beams >= 2, "num_beams");
  for (const auto& bias : defaults->rules.biases) FUZZ_CHECK(!bias.tokens.empty(), "a bias of no token");
  berth::EndTokenWarnings(ids, /*vocab_size=*/100);
  return 0;
}
