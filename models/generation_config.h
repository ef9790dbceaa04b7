// What a model's folder says about generating from it: default sampling parameters and the tokens that end a text.
// Plain data and one pure function. Torch-free.
#ifndef BERTH_MODELS_GENERATION_CONFIG_H_
#define BERTH_MODELS_GENERATION_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/checkpoint/json_config.h"

namespace berth {

// Unset means that the folder does not say: the server's own default applies.
struct GenerationDefaults {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int32_t> top_k;  // 0: all tokens
  bool do_sample = false;        // as written; see below

  std::vector<int32_t> eos_token_ids;  // ascending, distinct; any of them ends a text
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;

  // Encoder-decoder models only.
  std::optional<int32_t> decoder_start_token_id;
  std::optional<int32_t> forced_bos_token_id;  // the first generated token
  std::vector<int32_t> forced_eos_token_ids;   // ascending, distinct; one of them is the token at the maximum length

  friend bool operator==(const GenerationDefaults&, const GenerationDefaults&) = default;
};

// From `model_dir`/generation_config.json (which may be absent) and the model's config.json.
//  - Sampling values are taken where they are written, whatever the value of do_sample; the others stay unset. This is
//    vLLM's rule (--generation-config auto). Its users send requests without parameters and expect the model's
//    recommended ones. So do_sample false does not mean greedy; a client asks for that with temperature 0.
//  - Token ids come from generation_config.json; each one it lacks from config.json, or from its text_config. The two
//    forced ones are behaviour rather than ids: from generation_config.json, from config.json only where there is no
//    such file, as transformers does. A model without a decoder_start_token_id starts from its BOS.
// INVALID_ARGUMENT: no JSON, or a value out of range; names file, field, value and range.
absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& model_dir, const JsonConfig& config);

// A line for each end token that the model cannot give, because its vocabulary is smaller; one more if none is left.
std::vector<std::string> EndTokenWarnings(const std::vector<int32_t>& eos_token_ids, int64_t vocab_size);

}  // namespace berth

#endif  // BERTH_MODELS_GENERATION_CONFIG_H_
