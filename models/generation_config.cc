#include "models/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace berth {
namespace {

constexpr int64_t kMaxTokenId = std::numeric_limits<int32_t>::max();

std::optional<float> OptionalFloat(ConfigReader& r, absl::string_view key, double min, double max) {
  if (!r.Has(key)) return std::nullopt;
  return static_cast<float>(r.Double(key, min, max));
}

// First-found of a token id in `sources`. Some files write -1 for none.
std::optional<int32_t> OptionalToken(std::vector<ConfigReader*> sources, absl::string_view key) {
  for (ConfigReader* r : sources) {
    const int64_t id = r->IntOr(key, -1, -1, kMaxTokenId);
    if (id >= 0) return static_cast<int32_t>(id);
  }
  return std::nullopt;
}

// First-found of one id or a list of them; ascending, distinct.
std::vector<int32_t> TokenList(std::vector<ConfigReader*> sources, absl::string_view key) {
  std::vector<int32_t> result;
  for (ConfigReader* r : sources) {
    for (int64_t id : r->IntOrIntList(key, -1, kMaxTokenId)) {
      if (id >= 0) result.push_back(static_cast<int32_t>(id));
    }
    if (!result.empty()) break;
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

}  // namespace

std::vector<std::string> EndTokenWarnings(const std::vector<int32_t>& eos_token_ids, int64_t vocab_size) {
  std::vector<std::string> warnings;
  for (int32_t token : eos_token_ids) {
    if (token < vocab_size) continue;
    warnings.push_back(absl::StrCat("eos_token_id of generation_config.json or config.json: ", token,
                                    " is outside the vocabulary of ", vocab_size, " tokens and ignored"));
  }
  if (!warnings.empty() && warnings.size() == eos_token_ids.size()) {
    warnings.push_back(
        "eos_token_id of generation_config.json or config.json: no end token is left, so outputs end "
        "only at max_tokens or a stop of the request");
  }
  return warnings;
}

absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& model_dir, const JsonConfig& config) {
  const std::filesystem::path path = std::filesystem::path(model_dir) / "generation_config.json";
  std::error_code error;
  const bool has_file = std::filesystem::exists(path, error);
  absl::StatusOr<JsonConfig> generation =
      has_file ? JsonConfig::Create(path.string()) : JsonConfig::Parse("{}", "generation_config.json");
  if (!generation.ok()) return generation.status();

  ConfigReader r(*generation);
  ConfigReader model(config);
  ConfigReader text = model.ObjectOr("text_config");
  const float max = std::numeric_limits<float>::max();

  GenerationDefaults d;
  d.temperature = OptionalFloat(r, "temperature", 0, max);
  d.top_p = OptionalFloat(r, "top_p", 0, 1);
  d.min_p = OptionalFloat(r, "min_p", 0, 1);
  d.repetition_penalty = OptionalFloat(r, "repetition_penalty", std::numeric_limits<float>::min(), max);
  // vLLM's files write -1 for all tokens.
  if (r.Has("top_k")) d.top_k = static_cast<int32_t>(std::max<int64_t>(0, r.Int("top_k", -1, kMaxTokenId)));
  d.do_sample = r.BoolOr("do_sample", false);
  d.eos_token_ids = TokenList({&r, &model, &text}, "eos_token_id");
  d.bos_token_id = OptionalToken({&r, &model, &text}, "bos_token_id");
  d.pad_token_id = OptionalToken({&r, &model, &text}, "pad_token_id");
  d.decoder_start_token_id = OptionalToken({&r, &model}, "decoder_start_token_id");
  if (!d.decoder_start_token_id.has_value()) d.decoder_start_token_id = d.bos_token_id;
  ConfigReader* const behaviour = has_file ? &r : &model;
  d.forced_bos_token_id = OptionalToken({behaviour}, "forced_bos_token_id");
  d.forced_eos_token_ids = TokenList({behaviour}, "forced_eos_token_id");
  // What BART's first configurations said instead.
  if (!has_file && model.BoolOr("force_bos_token_to_be_generated", false)) d.forced_bos_token_id = d.bos_token_id;
  if (!r.status().ok()) return r.status();
  if (!model.status().ok()) return model.status();
  return d;
}

}  // namespace berth
