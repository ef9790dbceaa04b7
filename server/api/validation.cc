#include "server/api/validation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/api/chat_input.h"

namespace berth {
namespace {

constexpr int64_t kContextTokens = 8;  // enough for a character in pieces and the space before a word
constexpr int64_t kMaxRequestIdCharacters = 128;
constexpr int64_t kMaxLogitBias = 1024;
constexpr int64_t kMaxStopStrings = 16;
constexpr int64_t kMaxStopBytes = 256;
constexpr int64_t kMaxStopTokens = 64;
constexpr int64_t kMaxDetokenizeTokens = int64_t{1} << 20;

// Arguments are joined to the message: Invalid("stop", ": ", 17, " ...").
template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckCount(absl::string_view field, int64_t count, int64_t limit) {
  if (count <= limit) return absl::OkStatus();
  return Invalid(field, ": ", count, " entries are over the limit of ", limit);
}

// NaN and the infinities lie in no range.
absl::Status CheckRange(absl::string_view field, float value, float low, float high, bool low_excluded = false) {
  const bool above = low_excluded ? value > low : value >= low;
  if (above && value <= high) return absl::OkStatus();
  return Invalid(field, ": ", value, " is outside ", low_excluded ? "(" : "[", low, ", ", high, "]");
}

absl::Status CheckToken(absl::string_view field, int64_t token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return Invalid(field, ": token id ", token, " is outside [0, ", vocab_size - 1, "]");
}

template <typename Ids>
absl::Status CheckTokens(absl::string_view field, const Ids& ids, int64_t vocab_size) {
  for (int64_t i = 0; i < static_cast<int64_t>(ids.size()); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return CheckToken(absl::StrCat(field, "[", i, "]"), ids[i], vocab_size);
  }
  return absl::OkStatus();
}

absl::Status CheckText(absl::string_view field, const std::string& text, int64_t limit) {
  const int64_t bytes = static_cast<int64_t>(text.size());
  if (bytes <= limit) return absl::OkStatus();
  return Invalid(field, ": ", bytes, " bytes are over the limit of ", limit);
}

// Collects what is wrong; the first error wins, so that the checks read as a table.
class Checks {
 public:
  void Add(absl::Status status) { status_.Update(std::move(status)); }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

absl::Status FillLogitBias(const v1::Sampling& in, int64_t vocab_size, SamplingParams* out) {
  constexpr absl::string_view kField = "sampling.logit_bias";
  if (absl::Status s = CheckCount(kField, static_cast<int64_t>(in.logit_bias().size()), kMaxLogitBias); !s.ok())
    return s;
  for (const auto& [token, bias] : in.logit_bias()) {
    if (absl::Status s = CheckToken(kField, token, vocab_size); !s.ok()) return s;
    if (absl::Status s = CheckRange(absl::StrCat(kField, "[", token, "]"), bias, -100, 100); !s.ok()) return s;
    out->logit_bias.emplace_back(token, bias);
  }
  std::sort(out->logit_bias.begin(), out->logit_bias.end());  // a map comes in no order
  return absl::OkStatus();
}

absl::Status FillSampling(const v1::Sampling& in, const ValidationContext& context, uint64_t random_seed,
                          SamplingParams* out) {
  const GenerationDefaults& defaults = context.defaults;
  const int64_t vocab_size = context.model->vocab_size;
  out->temperature = in.has_temperature() ? in.temperature() : defaults.temperature.value_or(1.0f);
  // More tokens than there are means all of them.
  out->top_k = static_cast<int32_t>(
      std::min(in.has_top_k() ? int64_t{in.top_k()} : int64_t{defaults.top_k.value_or(0)}, vocab_size));
  out->top_p = in.has_top_p() ? in.top_p() : defaults.top_p.value_or(1.0f);
  out->min_p = in.has_min_p() ? in.min_p() : defaults.min_p.value_or(0.0f);
  out->repetition_penalty =
      in.has_repetition_penalty() ? in.repetition_penalty() : defaults.repetition_penalty.value_or(1.0f);
  out->presence_penalty = in.presence_penalty();
  out->frequency_penalty = in.frequency_penalty();
  out->seed = in.has_seed() ? in.seed() : random_seed;
  Checks checks;
  checks.Add(CheckRange("sampling.temperature", out->temperature, 0, 100));
  checks.Add(CheckRange("sampling.top_p", out->top_p, 0, 1, /*low_excluded=*/true));
  checks.Add(CheckRange("sampling.min_p", out->min_p, 0, 1));
  checks.Add(CheckRange("sampling.repetition_penalty", out->repetition_penalty, 0, 100, /*low_excluded=*/true));
  checks.Add(CheckRange("sampling.presence_penalty", out->presence_penalty, -2, 2));
  checks.Add(CheckRange("sampling.frequency_penalty", out->frequency_penalty, -2, 2));
  checks.Add(FillLogitBias(in, vocab_size, out));
  return checks.status();
}

// Stop strings and end tokens; the lengths wait for the prompt's.
absl::Status FillStopping(const v1::Stopping& in, const ValidationContext& context, Request* request,
                          TextStreamOptions* text) {
  const ModelInfo& model = *context.model;
  if (in.stop_size() > 0 && !context.text->has_tokenizer()) {
    return Invalid("stopping.stop: the model has no tokenizer; use stop_token_ids");
  }
  if (absl::Status s = CheckCount("stopping.stop", in.stop_size(), kMaxStopStrings); !s.ok()) return s;
  for (int i = 0; i < in.stop_size(); ++i) {
    const int64_t bytes = static_cast<int64_t>(in.stop(i).size());
    if (bytes < 1 || bytes > kMaxStopBytes) {
      return Invalid("stopping.stop[", i, "]: ", bytes, " bytes are outside [1, ", kMaxStopBytes, "]");
    }
  }
  Checks checks;
  checks.Add(CheckCount("stopping.stop_token_ids", in.stop_token_ids_size(), kMaxStopTokens));
  checks.Add(CheckTokens("stopping.stop_token_ids", in.stop_token_ids(), model.vocab_size));
  if (!checks.status().ok()) return checks.status();
  text->stop.assign(in.stop().begin(), in.stop().end());
  text->include_stop = in.include_stop();
  std::vector<int32_t>& ids = request->stop_token_ids;
  ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  if (!in.ignore_eos()) ids.insert(ids.end(), model.eos_token_ids.begin(), model.eos_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> EncodeText(absl::string_view field, const std::string& text,
                                                bool add_special_tokens, const ValidationContext& context) {
  if (absl::Status s = CheckText(field, text, context.limits.max_text_bytes); !s.ok()) return s;
  absl::StatusOr<std::vector<int32_t>> tokens = context.text->Encode(text, add_special_tokens);
  if (!tokens.ok()) return Invalid(field, ": ", tokens.status().message());
  // The tokenizer may know tokens that the model has no row for.
  if (absl::Status s = CheckTokens(field, absl::MakeConstSpan(*tokens), context.model->vocab_size); !s.ok()) return s;
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> PromptTokens(const v1::GenerateRequest& in, const ValidationContext& context) {
  if (in.has_add_special_tokens() && in.input_case() != v1::GenerateRequest::kPrompt) {
    return Invalid("add_special_tokens: goes with prompt only");
  }
  switch (in.input_case()) {
    case v1::GenerateRequest::kPrompt:
      return EncodeText("prompt", in.prompt(), in.has_add_special_tokens() ? in.add_special_tokens() : true, context);
    case v1::GenerateRequest::kChat: {
      absl::StatusOr<std::string> text = RenderChat(in.chat(), *context.text, context.limits.max_text_bytes);
      if (!text.ok()) return text.status();
      return EncodeText("chat", *text, /*add_special_tokens=*/false, context);  // the template wrote them
    }
    case v1::GenerateRequest::kTokenIds: {
      const auto& ids = in.token_ids().ids();
      if (absl::Status s = CheckTokens("token_ids.ids", ids, context.model->vocab_size); !s.ok()) return s;
      return std::vector<int32_t>(ids.begin(), ids.end());
    }
    default:
      return Invalid("input: none of prompt, chat, token_ids is set");
  }
}

// Moves the prompt to the encoder, and says what the decoder starts from and is made to say: GenerationMixin's
// _prepare_decoder_input_ids_for_generation and its forced-token processors.
absl::Status FillDecoder(const v1::GenerateRequest& in, const ValidationContext& context, Request* request) {
  const GenerationDefaults& defaults = context.defaults;
  const int64_t count = static_cast<int64_t>(request->prompt.size());
  const int64_t limit = context.limits.max_encoder_tokens;
  if (count == 0) return Invalid("prompt: 0 tokens; at least 1 is needed");
  if (count > limit) {
    return absl::OutOfRangeError(
        absl::StrCat("prompt: ", count, " tokens are over the limit of ", limit, " tokens that the encoder reads"));
  }
  request->encoder_tokens = std::move(request->prompt);
  const auto& ids = in.decoder_token_ids().ids();
  if (in.has_decoder_token_ids() && ids.empty()) return Invalid("decoder_token_ids: 0 tokens; at least 1 is needed");
  if (absl::Status s = CheckTokens("decoder_token_ids.ids", ids, context.model->vocab_size); !s.ok()) return s;
  if (ids.empty() && !defaults.decoder_start_token_id.has_value()) {
    return Invalid("decoder_token_ids: needed, because the model names no decoder_start_token_id");
  }
  request->prompt.assign(ids.begin(), ids.end());
  if (const auto start = defaults.decoder_start_token_id; start.has_value() && (ids.empty() || ids[0] != *start)) {
    request->prompt.insert(request->prompt.begin(), *start);
  }

  const int64_t decoder_tokens = static_cast<int64_t>(request->prompt.size());
  if (in.has_forced_bos_token_id()) {
    const int32_t token = in.forced_bos_token_id();
    if (absl::Status s = CheckToken("forced_bos_token_id", token, context.model->vocab_size); !s.ok()) return s;
    if (decoder_tokens > 1) {
      return Invalid("forced_bos_token_id: ", token, " goes with a decoder that starts from 1 token; it starts from ",
                     decoder_tokens);
    }
    request->forced_first = {token};
  } else if (defaults.forced_bos_token_id.has_value() && decoder_tokens == 1) {
    request->forced_first = {*defaults.forced_bos_token_id};
  }
  request->forced_last = defaults.forced_eos_token_ids;
  return absl::OkStatus();
}

absl::Status RefuseDecoderFields(const v1::GenerateRequest& in, const ModelInfo& model) {
  const char* field = in.has_decoder_token_ids()     ? "decoder_token_ids"
                      : in.has_forced_bos_token_id() ? "forced_bos_token_id"
                                                     : nullptr;
  if (field == nullptr) return absl::OkStatus();
  return Invalid(field, ": goes with encoder-decoder models only; ", model.model_type, " has no encoder");
}

absl::Status FillLengths(const v1::Stopping& in, const RequestLimits& limits, Request* request) {
  const int64_t prompt = static_cast<int64_t>(request->prompt.size());
  const int64_t limit = limits.max_sequence_tokens;
  if (prompt == 0) return Invalid("prompt: 0 tokens; at least 1 is needed");
  if (in.has_max_tokens() && in.max_tokens() == 0)
    return Invalid("stopping.max_tokens: 0 is outside [1, ", limit - 1, "]");
  const int64_t wanted = in.has_max_tokens() ? int64_t{in.max_tokens()} : 1;
  if (prompt > limit - wanted) {
    const absl::string_view field = request->encoder_tokens.empty() ? "prompt" : "decoder_token_ids";
    return absl::OutOfRangeError(absl::StrCat(field, ": ", prompt, " tokens and stopping.max_tokens ",
                                              in.has_max_tokens() ? absl::StrCat(wanted) : "(absent, at least 1)",
                                              " are over the limit of ", limit, " tokens of prompt and output"));
  }
  request->max_tokens = wanted;
  if (!in.has_max_tokens()) {
    request->max_tokens = limit - prompt;
    if (limits.default_max_tokens > 0) request->max_tokens = std::min(request->max_tokens, limits.default_max_tokens);
  }
  request->min_tokens = in.min_tokens();
  if (request->min_tokens > request->max_tokens) {
    return Invalid("stopping.min_tokens: ", request->min_tokens, " is over max_tokens ", request->max_tokens);
  }
  return absl::OkStatus();
}

absl::Status FillLogprobs(const v1::GenerateRequest& in, const RequestLimits& limits, ValidatedRequest* out) {
  if (!in.has_logprobs()) return absl::OkStatus();
  if (int64_t{in.logprobs()} > limits.max_logprobs) {
    return Invalid("logprobs: ", in.logprobs(), " is outside [0, ", limits.max_logprobs, "]");
  }
  out->output.logprobs = true;
  out->request.sampling.num_logprobs = static_cast<int32_t>(in.logprobs());
  return absl::OkStatus();
}

absl::Status CheckOutputCount(absl::string_view field, int64_t value, int64_t least, int64_t limit) {
  if (value >= least && value <= limit) return absl::OkStatus();
  return Invalid(field, ": ", value, " is outside [", least, ", ", limit, "]");
}

// What a beam search would leave without effect, or compute otherwise than transformers.
absl::Status RefuseBesideBeams(const v1::GenerateRequest& in, const SamplingParams& effective) {
  const v1::Sampling& sampling = in.sampling();
  const auto refuse = [](absl::string_view field, auto value, bool refused) {
    if (!refused) return absl::OkStatus();
    return Invalid(field, ": ", value,
                   " does not go with beam_search, which is greedy and knows the model's own "
                   "distribution alone");
  };
  Checks checks;
  checks.Add(refuse("best_of", in.best_of(), in.has_best_of()));
  checks.Add(refuse("logprobs", in.logprobs(), in.logprobs() > 0));
  checks.Add(refuse("stopping.stop", in.stopping().stop_size(), in.stopping().stop_size() > 0));
  checks.Add(refuse("sampling.temperature", sampling.temperature(), sampling.temperature() > 0));
  checks.Add(refuse("sampling.top_k", sampling.top_k(), sampling.top_k() > 0));
  checks.Add(refuse("sampling.top_p", sampling.top_p(), sampling.has_top_p() && sampling.top_p() < 1));
  checks.Add(refuse("sampling.min_p", sampling.min_p(), sampling.min_p() > 0));
  // The model's own default counts: transformers would follow it.
  checks.Add(refuse("sampling.repetition_penalty", effective.repetition_penalty, effective.repetition_penalty != 1));
  checks.Add(refuse("sampling.presence_penalty", effective.presence_penalty, effective.presence_penalty != 0));
  checks.Add(refuse("sampling.frequency_penalty", effective.frequency_penalty, effective.frequency_penalty != 0));
  checks.Add(refuse("sampling.logit_bias", sampling.logit_bias().size(), !sampling.logit_bias().empty()));
  return checks.status();
}

absl::Status FillBeamSearch(const v1::GenerateRequest& in, const ValidationContext& context, ValidatedRequest* out) {
  const v1::BeamSearch& beams = in.beam_search();
  const int64_t limit = std::min(context.limits.max_outputs, context.model->vocab_size / 2);
  const int64_t num_beams = beams.num_beams();
  Request& request = out->request;
  Checks checks;
  checks.Add(CheckOutputCount("beam_search.num_beams", num_beams, 2, limit));
  if (checks.status().ok()) checks.Add(CheckOutputCount("n", request.num_outputs, 1, num_beams));
  const double penalty = beams.has_length_penalty() ? beams.length_penalty() : 1.0;
  if (!(penalty >= -10 && penalty <= 10)) {
    checks.Add(Invalid("beam_search.length_penalty: ", penalty, " is outside [-10, 10]"));
  }
  if (beams.early_stopping() < 0 || beams.early_stopping() > 2) {
    checks.Add(Invalid("beam_search.early_stopping: ", static_cast<int>(beams.early_stopping()), " is outside [0, 2]"));
  }
  checks.Add(RefuseBesideBeams(in, request.sampling));
  if (!checks.status().ok()) return checks.status();
  request.beams = {.num_beams = num_beams,
                   .length_penalty = penalty,
                   .early_stopping = beams.early_stopping() == v1::EARLY_STOPPING_TRUE    ? EarlyStopping::kAtOnce
                                     : beams.early_stopping() == v1::EARLY_STOPPING_NEVER ? EarlyStopping::kNever
                                                                                          : EarlyStopping::kHeuristic};
  request.sampling = {.temperature = 0, .seed = request.sampling.seed, .num_logprobs = request.sampling.num_logprobs};
  out->output.sums_logprobs = true;
  out->output.tells_at_end = true;
  return absl::OkStatus();
}

// How many outputs, and which of them are returned. After FillSampling and FillLogprobs.
absl::Status FillOutputs(const v1::GenerateRequest& in, const ValidationContext& context, ValidatedRequest* out) {
  const int64_t limit = context.limits.max_outputs;
  const int64_t n = in.has_n() ? int64_t{in.n()} : 1;
  if (absl::Status s = CheckOutputCount("n", n, 1, limit); !s.ok()) return s;
  Request& request = out->request;
  request.num_outputs = n;
  out->output.num_generated = out->output.num_returned = n;
  out->output.sums_logprobs = in.has_logprobs();
  if (in.has_beam_search()) return FillBeamSearch(in, context, out);
  const int64_t best_of = in.has_best_of() ? int64_t{in.best_of()} : n;
  if (absl::Status s = CheckOutputCount("best_of", best_of, n, limit); !s.ok()) return s;
  if (best_of == n) return absl::OkStatus();
  request.num_outputs = out->output.num_generated = best_of;
  request.sampling.num_logprobs = std::max(0, request.sampling.num_logprobs);
  out->output.sums_logprobs = true;
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStreamed(const OutputOptions& output) {
  if (output.num_generated == output.num_returned) return absl::OkStatus();
  return Invalid("best_of: ", output.num_generated, " is over n of ", output.num_returned,
                 ", and which are the best is known at the end alone; use Complete");
}

absl::Status CheckRequestId(absl::string_view field, std::string_view id) {
  const auto starts_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const int64_t characters = std::count_if(id.begin(), id.end(), starts_character);
  if (characters < 1 || characters > kMaxRequestIdCharacters) {
    return Invalid(field, ": ", characters, " characters are outside [1, ", kMaxRequestIdCharacters, "]");
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(id.begin(), id.end(), is_control)) return Invalid(field, ": has a control character");
  return absl::OkStatus();
}

absl::StatusOr<ValidatedRequest> ValidateGenerate(const v1::GenerateRequest& in, const ValidationContext& context,
                                                  uint64_t random_seed) {
  ValidatedRequest out;
  Checks checks;  // the cheap ones come before the tokenizer's work
  if (in.has_request_id()) checks.Add(CheckRequestId("request_id", in.request_id()));
  if (in.draft_tokens() > kMaxDraftTokens) {
    checks.Add(Invalid("draft_tokens: ", in.draft_tokens(), " is over the limit of ", kMaxDraftTokens));
  }
  if (!in.cache_salt().empty()) checks.Add(CheckRequestId("cache_salt", in.cache_salt()));
  checks.Add(FillSampling(in.sampling(), context, random_seed, &out.request.sampling));
  checks.Add(FillStopping(in.stopping(), context, &out.request, &out.output.text));
  checks.Add(FillLogprobs(in, context.limits, &out));
  if (checks.status().ok()) checks.Add(FillOutputs(in, context, &out));
  if (!checks.status().ok()) return checks.status();
  absl::StatusOr<std::vector<int32_t>> prompt = PromptTokens(in, context);
  if (!prompt.ok()) return prompt.status();
  out.request.prompt = *std::move(prompt);
  absl::Status decoder = context.limits.max_encoder_tokens > 0 ? FillDecoder(in, context, &out.request)
                                                               : RefuseDecoderFields(in, *context.model);
  if (!decoder.ok()) return decoder;
  if (absl::Status s = FillLengths(in.stopping(), context.limits, &out.request); !s.ok()) return s;
  out.request.draft_tokens = in.has_draft_tokens() ? in.draft_tokens() : context.limits.default_draft_tokens;
  out.request.share_prefix = in.has_share_prefix() ? in.share_prefix() : true;
  out.request.cache_salt = in.cache_salt();
  if (in.has_autosave_tokens() && !in.has_session_id()) return Invalid("autosave_tokens: goes with session_id only");
  out.session_id = in.session_id();
  out.request.saved = in.has_session_id();
  out.request.autosave_tokens = in.autosave_tokens();
  out.request_id = in.request_id();
  out.output.text.skip_special_tokens = in.has_skip_special_tokens() ? in.skip_special_tokens() : true;
  out.output.return_prompt_token_ids = in.return_prompt_token_ids();
  // An answer in a chat is a text of its own; so is what a decoder says that starts from nothing but its start token.
  if (out.request.encoder_tokens.empty() ? !in.has_chat() : in.has_decoder_token_ids()) {
    const std::vector<int32_t>& tokens = out.request.prompt;
    out.output.text.context.assign(tokens.end() - std::min<int64_t>(kContextTokens, tokens.size()), tokens.end());
  }
  return out;
}

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& in, const ValidationContext& context) {
  v1::TokenizeResponse out;
  bool add_special_tokens = in.has_add_special_tokens() ? in.add_special_tokens() : true;
  if (in.input_case() == v1::TokenizeRequest::kText) {
    out.set_text(in.text());
  } else if (in.input_case() == v1::TokenizeRequest::kChat) {
    if (in.has_add_special_tokens()) return Invalid("add_special_tokens: goes with text only");
    absl::StatusOr<std::string> text = RenderChat(in.chat(), *context.text, context.limits.max_text_bytes);
    if (!text.ok()) return text.status();
    out.set_text(*std::move(text));
    add_special_tokens = false;
  } else {
    return Invalid("input: none of text, chat is set");
  }
  absl::StatusOr<std::vector<int32_t>> tokens = EncodeText("text", out.text(), add_special_tokens, context);
  if (!tokens.ok()) return tokens.status();
  out.mutable_token_ids()->Add(tokens->begin(), tokens->end());
  return out;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& in, const ValidationContext& context) {
  Checks checks;
  checks.Add(CheckCount("token_ids", in.token_ids_size(), kMaxDetokenizeTokens));
  checks.Add(CheckTokens("token_ids", in.token_ids(), context.model->vocab_size));
  if (!checks.status().ok()) return checks.status();
  absl::StatusOr<std::string> text =
      context.text->Decode(in.token_ids(), in.has_skip_special_tokens() ? in.skip_special_tokens() : true);
  if (!text.ok()) return Invalid("token_ids: ", text.status().message());
  v1::DetokenizeResponse out;
  out.set_text(*std::move(text));
  return out;
}

}  // namespace berth
