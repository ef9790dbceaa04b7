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
#include "models/token_rules.h"

namespace berth {

// Unset means that the folder does not say: the server's own default applies.
struct GenerationDefaults {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int32_t> top_k;  // 0: all tokens
  bool do_sample = false;        // as written; see below

  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> max_length;  // prompt and output
  std::optional<int64_t> min_new_tokens;
  std::optional<int64_t> min_length;  // prompt and output
  std::vector<std::string> stop_strings;
  TokenRules rules;

  // Defaults of a beam search. A request without one is not searched with beams, whatever num_beams says.
  std::optional<int32_t> num_beams;  // at least 2
  std::optional<double> length_penalty;
  int32_t early_stopping = 0;  // 0: false; 1: true; 2: "never"

  std::vector<int32_t> eos_token_ids;  // ascending, distinct; any of them ends a text
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;

  std::optional<int32_t> decoder_start_token_id;  // encoder-decoder models only
  std::optional<int32_t> forced_bos_token_id;     // the first generated token, after a prompt of one token
  std::vector<int32_t> forced_eos_token_ids;      // ascending, distinct; one of them is the token at the maximum length

  friend bool operator==(const GenerationDefaults&, const GenerationDefaults&) = default;
};

// From `model_dir`/generation_config.json and the model's config.json. models/checkpoint/generation_fields.h says which
// field becomes what.
//  - Without a generation_config.json, its fields are taken from config.json, and then from its text_config, as
//    transformers does.
//  - Sampling values are taken where they are written, whatever the value of do_sample; the others stay unset. This is
//    vLLM's rule (--generation-config auto). Its users send requests without parameters and expect the model's
//    recommended ones. So do_sample false does not mean greedy; a client asks for that with temperature 0.
//  - Token ids that generation_config.json lacks also come from config.json, or from its text_config; the two forced
//    ones do not. A model without a decoder_start_token_id starts from its BOS.
// `warnings` gets a line for the fields that are not done, and one for those that are not known.
// INVALID_ARGUMENT: no JSON, or a value out of range; names file, field, value and range. FAILED_PRECONDITION: a field
// that is not implemented and would change greedy tokens.
absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& model_dir, const JsonConfig& config,
                                                          std::vector<std::string>* warnings);

// A line for each end token that the model cannot give, because its vocabulary is smaller; one more if none is left.
std::vector<std::string> EndTokenWarnings(const std::vector<int32_t>& eos_token_ids, int64_t vocab_size);

}  // namespace berth

#endif  // BERTH_MODELS_GENERATION_CONFIG_H_
