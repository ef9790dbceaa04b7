#include "models/checkpoint/generation_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bounded_json.h"

namespace berth {
namespace {

using enum FieldUse;
using nlohmann::json;

// The rows have the names of transformers 5 and the older ones that published files still have. The groups are those of
// transformers' GenerationConfig.
// clang-format off
constexpr GenerationField kFields[] = {
    // How long an output is.
    {"max_length", kDefault, "null", "stopping.max_tokens, less the prompt"},
    {"max_new_tokens", kDefault, "null", "stopping.max_tokens; wins over max_length"},
    {"min_length", kDefault, "null", "stopping.min_tokens, less the prompt"},
    {"min_new_tokens", kDefault, "null", "stopping.min_tokens; wins over min_length"},
    {"stop_strings", kDefault, "null", "stopping.stop"},
    {"max_time", kWarned, "null", "ends an output after this many seconds; a request has a deadline for that"},
    // The search.
    {"do_sample", kNoEffect, "false", "a request without sampling fields samples; temperature 0 is greedy"},
    {"num_beams", kDefault, "1", "beam_search.num_beams, of a request with a beam_search"},
    {"early_stopping", kDefault, "false", "beam_search.early_stopping"},
    {"length_penalty", kDefault, "1", "beam_search.length_penalty"},
    {"num_beam_groups", kRefused, "1", "searches in groups of beams"},
    {"diversity_penalty", kRefused, "0", "makes groups of beams differ"},
    {"penalty_alpha", kRefused, "0", "searches contrastively"},
    {"dola_layers", kRefused, "null", "contrasts the logits of layers"},
    {"constraints", kRefused, "null", "forces words into the output"},
    {"force_words_ids", kRefused, "null", "forces words into the output"},
    {"num_return_sequences", kWarned, "1", "returns several outputs; a request asks for them with n"},
    {"low_memory", kNoEffect, "false", "how transformers searches"},
    // The logits.
    {"temperature", kDefault, "1", "sampling.temperature"},
    {"top_k", kDefault, "null", "sampling.top_k"},
    {"top_p", kDefault, "1", "sampling.top_p"},
    {"min_p", kDefault, "0", "sampling.min_p"},
    {"top_h", kWarned, "null", "cuts what is sampled from by its entropy"},
    {"typical_p", kWarned, "1", "cuts what is sampled from to typical tokens"},
    {"epsilon_cutoff", kWarned, "0", "cuts unlikely tokens from what is sampled from"},
    {"eta_cutoff", kWarned, "0", "cuts unlikely tokens from what is sampled from"},
    {"repetition_penalty", kDefault, "1", "sampling.repetition_penalty"},
    {"encoder_repetition_penalty", kRefused, "1", "favours tokens of the input"},
    {"no_repeat_ngram_size", kDefault, "0", "sampling.no_repeat_ngram_size"},
    {"encoder_no_repeat_ngram_size", kAlways, "0", "no n-gram of the input, or of the prompt, comes again"},
    {"bad_words_ids", kAlways, "null", "these sequences of tokens never come"},
    {"sequence_bias", kAlways, "null", "a bias for the last token of each sequence; not with a beam search"},
    {"suppress_tokens", kAlways, "null", "these tokens never come"},
    {"begin_suppress_tokens", kAlways, "null", "these tokens never come first"},
    {"forced_bos_token_id", kAlways, "null", "the first token after a prompt of one token; a request may set its own"},
    {"forced_eos_token_id", kAlways, "null", "the token that reaches max_tokens"},
    {"exponential_decay_length_penalty", kRefused, "null", "makes the end likelier token by token"},
    {"guidance_scale", kRefused, "1", "guides the output away from a negative prompt"},
    {"watermarking_config", kRefused, "null", "marks the output"},
    {"token_healing", kRefused, "false", "takes the end of the prompt back"},
    {"renormalize_logits", kWarned, "false", "normalises scores again in a beam search"},
    {"remove_invalid_values", kWarned, "false", "replaces logits that are not finite"},
    // Special tokens.
    {"eos_token_id", kAlways, "null", "end an output, unless ignore_eos"},
    {"bos_token_id", kAlways, "null", "what a decoder starts from without a decoder_start_token_id"},
    {"pad_token_id", kNoEffect, "null", "Berth pads nothing"},
    {"decoder_start_token_id", kAlways, "null", "what a decoder starts from"},
    // The cache, speculation and speed: how transformers computes.
    {"use_cache", kNoEffect, "true", "Berth always has a cache"},
    {"cache_implementation", kNoEffect, "null", "Berth's cache is its own; --cache_dtype quantises it"},
    {"cache_config", kNoEffect, "null", "Berth's cache is its own"},
    {"max_cache_len", kNoEffect, "null", "Berth's cache is its own"},
    {"return_legacy_cache", kNoEffect, "null", "Berth's cache is its own"},
    {"prefill_chunk_size", kNoEffect, "null", "--prefill_chunk_tokens"},
    {"compile_config", kNoEffect, "null", "how transformers computes"},
    {"disable_compile", kNoEffect, "null", "how transformers computes"},
    {"continuous_batching_config", kNoEffect, "null", "how transformers computes"},
    {"is_assistant", kNoEffect, "null", "of draft models"},
    {"num_assistant_tokens", kNoEffect, "null", "of draft models"},
    {"num_assistant_tokens_schedule", kNoEffect, "null", "of draft models"},
    {"assistant_confidence_threshold", kNoEffect, "null", "of draft models"},
    {"assistant_early_exit", kNoEffect, "null", "of draft models"},
    {"assistant_lookbehind", kNoEffect, "null", "of draft models"},
    {"assistant_ensemble_weight", kNoEffect, "null", "of draft models"},
    {"target_lookbehind", kNoEffect, "null", "of draft models"},
    {"speculation_type", kNoEffect, "null", "of draft models"},
    {"use_mtp", kNoEffect, "null", "drafts by the model's own heads; draft_tokens"},
    {"prompt_lookup_num_tokens", kNoEffect, "null", "drafts from the prompt; draft_tokens"},
    {"max_matching_ngram_size", kNoEffect, "null", "drafts from the prompt; draft_tokens"},
    // What else generate() returns.
    {"output_attentions", kNoEffect, "null", "what else transformers returns"},
    {"output_hidden_states", kNoEffect, "null", "what else transformers returns"},
    {"output_scores", kNoEffect, "null", "what else transformers returns"},
    {"output_logits", kNoEffect, "null", "what else transformers returns"},
    {"return_dict_in_generate", kNoEffect, "null", "what else transformers returns"},
    // About the file.
    {"transformers_version", kNoEffect, "null", "about the file"},
    {"_from_model_config", kNoEffect, "null", "about the file"},
    {"_commit_hash", kNoEffect, "null", "about the file"},
    {"generation_kwargs", kNoEffect, "null", "arguments of the model's forward pass"},
};
// clang-format on

constexpr size_t kMostNames = 16;  // in a warning

bool Changes(const json& fields, const GenerationField& field) {
  const auto it = fields.find(std::string(field.name));
  return it != fields.end() && !it->is_null() && *it != json::parse(field.neutral);
}

bool IsKnown(absl::string_view name) {
  return std::any_of(std::begin(kFields), std::end(kFields), [&](const GenerationField& f) { return f.name == name; });
}

std::string Line(absl::string_view file, absl::string_view what, std::vector<std::string> texts) {
  const size_t count = texts.size();
  texts.resize(std::min(count, kMostNames));
  return absl::StrCat(file, ": ", what, absl::StrJoin(texts, ", "), count > texts.size() ? ", ..." : "");
}

}  // namespace

absl::Status RefuseGenerationFields(const JsonConfig& file) {
  for (const GenerationField& field : kFields) {
    if (field.use != kRefused || !Changes(file.value(), field)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(file.name(), ": ", field.name, ": ", ShortDump(file.value()[std::string(field.name)]), " ",
                     field.note, ", which is not implemented; remove the field to serve the model without"));
  }
  return absl::OkStatus();
}

std::vector<std::string> GenerationFieldWarnings(const JsonConfig& file, bool names_unknown) {
  std::vector<std::string> warned;
  std::vector<std::string> unknown;
  for (const GenerationField& field : kFields) {
    // A plain request is not searched with beams, although generate() would.
    const bool searches = field.name == "num_beams";
    if ((field.use != kWarned && !searches) || !Changes(file.value(), field)) continue;
    const absl::string_view note = searches ? "a request asks for a beam search itself" : field.note;
    warned.push_back(absl::StrCat(field.name, " ", ShortDump(file.value()[std::string(field.name)]), " (", note, ")"));
  }
  for (const auto& [name, value] : file.value().items()) {
    if (names_unknown && !value.is_null() && !IsKnown(name)) unknown.push_back(ShortQuote(name));
  }
  std::vector<std::string> lines;
  if (!warned.empty()) lines.push_back(Line(file.name(), "Berth does not do what these fields say: ", warned));
  if (!unknown.empty()) lines.push_back(Line(file.name(), "Berth does not know these fields: ", unknown));
  return lines;
}

}  // namespace berth
