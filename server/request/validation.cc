#include "server/request/validation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/steady_clock.h"
#include "server/request/chat_input.h"
#include "server/request/decode_text.h"
#include "server/request/message_ends.h"
#include "server/request/request_fields.h"
#include "server/request/structure.h"

namespace berth {
namespace {

constexpr int64_t kContextTokens = 8;  // enough for a character in several tokens and the space before a word
constexpr int64_t kMaxLogitBias = 1024;
constexpr int64_t kMaxStopStrings = 16;
constexpr int64_t kMaxStopBytes = 256;
constexpr int64_t kMaxStopTokens = 64;
constexpr int64_t kMaxTextTokens = int64_t{1} << 20;  // of Tokenize and Detokenize
// Logprobs of a prompt: they are one message, and gRPC refuses one over 16 MiB.
constexpr int64_t kMaxPromptLogprobs = int64_t{1} << 18;

absl::Status ReadLogitBias(const v1::Sampling& in, int64_t vocab_size, SamplingParams* out) {
  constexpr absl::string_view kField = "sampling.logit_bias";
  if (absl::Status s = CheckCount(kField, static_cast<int64_t>(in.logit_bias().size()), kMaxLogitBias); !s.ok())
    return s;
  for (const auto& [token, bias] : in.logit_bias()) {
    if (absl::Status s = CheckToken(kField, token, vocab_size); !s.ok()) return s;
    if (absl::Status s = CheckRange(absl::StrCat(kField, "[", token, "]"), bias, Closed(-100, 100)); !s.ok()) return s;
    out->logit_bias.emplace_back(token, bias);
  }
  std::sort(out->logit_bias.begin(), out->logit_bias.end());  // a map has no order
  return absl::OkStatus();
}

// The text leaves special tokens out, so that no stop string with one in it is found. One that is a special token and
// nothing else ends the text all the same.
absl::Status CheckFound(int index, const std::string& stop, const TextCodec& text) {
  const absl::StatusOr<std::vector<int32_t>> tokens = text.Encode(stop, /*add_special_tokens=*/false, {});
  if (!tokens.ok()) return absl::OkStatus();
  for (int32_t token : *tokens) {
    if (text.Reads(token, /*skip_special_tokens=*/true)) continue;
    const std::string name = text.TextOf(token, /*first=*/false).text;
    if (name.empty() || name == stop || !absl::StrContains(stop, name)) continue;
    return Invalid("stopping.stop[", index, "]: has the special token ", name,
                   ", which the text leaves out; use stop_token_ids, or skip_special_tokens=false");
  }
  return absl::OkStatus();
}

// Stop strings and end tokens. The lengths are read when the prompt's is known. REQUIRES: text->skip_special_tokens is
// read.
absl::Status ReadStops(const v1::Stopping& in, const ValidationContext& context, Request* request,
                       TextStreamOptions* text) {
  const ModelInfo& model = *context.model;
  const bool has_tokenizer = context.text->has_tokenizer();
  if (in.stop_size() > 0 && !has_tokenizer) {
    return Invalid("stopping.stop: the model has no tokenizer; use stop_token_ids");
  }
  if (absl::Status s = CheckCount("stopping.stop", in.stop_size(), kMaxStopStrings); !s.ok()) return s;
  for (int i = 0; i < in.stop_size(); ++i) {
    const int64_t bytes = static_cast<int64_t>(in.stop(i).size());
    if (bytes < 1 || bytes > kMaxStopBytes) {
      return Invalid("stopping.stop[", i, "]: ", bytes, " bytes are outside [1, ", kMaxStopBytes, "]");
    }
    if (!text->skip_special_tokens || context.is_resumed) continue;
    if (absl::Status s = CheckFound(i, in.stop(i), *context.text); !s.ok()) return s;
  }
  Checks checks;
  checks.Add(CheckCount("stopping.stop_token_ids", in.stop_token_ids_size(), kMaxStopTokens));
  checks.Add(CheckTokens("stopping.stop_token_ids", in.stop_token_ids(), model.vocab_size));
  if (!checks.status().ok()) return checks.status();
  text->stop.assign(in.stop().begin(), in.stop().end());
  if (in.stop_size() == 0 && has_tokenizer && !in.ignore_eos()) text->stop = context.defaults.stop_strings;
  std::vector<int32_t>& ids = request->stop_token_ids;
  ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  if (!in.ignore_eos()) ids.insert(ids.end(), model.eos_token_ids.begin(), model.eos_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return absl::OkStatus();
}

// Returns what `work` does, and tells `on_done` how long that took.
template <typename Work>
auto Timed(const std::function<void(absl::Duration)>& on_done, const Work& work) {
  const absl::Time start = SteadyNow();
  auto result = work();
  if (on_done != nullptr) on_done(SteadyNow() - start);
  return result;
}

absl::StatusOr<std::string> Render(const v1::Chat& chat, const StopCheck& stop, const ValidationContext& context) {
  return Timed(context.on_rendered,
               [&] { return RenderChat(chat, *context.text, context.limits.max_text_bytes, stop); });
}

// OUT_OF_RANGE: more than `max_tokens`.
absl::StatusOr<std::vector<int32_t>> EncodeText(absl::string_view field, const std::string& text,
                                                bool add_special_tokens, int64_t max_tokens, const StopCheck& stop,
                                                const ValidationContext& context) {
  if (absl::Status s = CheckText(field, text, context.limits.max_text_bytes); !s.ok()) return s;
  const int64_t longest = context.text->longest_token_bytes();
  if (longest > 0 && static_cast<int64_t>(text.size()) / longest > max_tokens) {
    return absl::OutOfRangeError(absl::StrCat(field, ": ", text.size(), " bytes are over ", max_tokens,
                                              " tokens, as no token has over ", longest, " bytes"));
  }
  absl::StatusOr<std::vector<int32_t>> tokens = Timed(context.on_tokenised, [&] {
    return context.text->Encode(text, add_special_tokens, {.max_tokens = max_tokens, .stop = stop});
  });
  if (absl::IsCancelled(tokens.status())) return tokens.status();
  if (absl::IsOutOfRange(tokens.status())) {
    return absl::OutOfRangeError(absl::StrCat(field, ": ", text.size(), " bytes are over ", max_tokens, " tokens"));
  }
  if (!tokens.ok()) return Invalid(field, ": ", tokens.status().message());
  // The tokenizer may know tokens that are outside the model's vocabulary.
  if (absl::Status s = CheckTokens(field, absl::MakeConstSpan(*tokens), context.model->vocab_size); !s.ok()) return s;
  return tokens;
}

// `chat_text` is set to the rendered text of a chat.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const v1::GenerateRequest& in, const StopCheck& stop,
                                                  const ValidationContext& context, std::string* chat_text) {
  const RequestLimits& limits = context.limits;
  // Some more than fit, so that the refusal of a prompt that is a little too long says its length.
  const int64_t max_tokens =
      2 * (limits.max_encoder_tokens > 0 ? limits.max_encoder_tokens : limits.max_sequence_tokens);
  if (in.has_add_special_tokens() && in.input_case() != v1::GenerateRequest::kPrompt) {
    return Invalid("add_special_tokens: can be set only with prompt");
  }
  switch (in.input_case()) {
    case v1::GenerateRequest::kPrompt:
      return EncodeText("prompt", in.prompt(), in.has_add_special_tokens() ? in.add_special_tokens() : true, max_tokens,
                        stop, context);
    case v1::GenerateRequest::kChat: {
      absl::StatusOr<std::string> text = Render(in.chat(), stop, context);
      if (!text.ok()) return text.status();
      *chat_text = *std::move(text);
      return EncodeText("chat", *chat_text, /*add_special_tokens=*/false, max_tokens, stop, context);  // it has them
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

// Moves the prompt to the encoder, and sets the decoder's prompt and forced tokens, as GenerationMixin of transformers
// does in _prepare_decoder_input_ids_for_generation and its forced-token processors.
absl::Status ReadDecoder(const v1::GenerateRequest& in, const ValidationContext& context, Request* request) {
  const GenerationDefaults& defaults = context.defaults;
  const int64_t count = static_cast<int64_t>(request->prompt.size());
  const int64_t limit = context.limits.max_encoder_tokens;
  if (count == 0) return Invalid("prompt: 0 tokens; at least 1 is needed");
  if (count > limit) {
    return absl::OutOfRangeError(
        absl::StrCat("prompt: ", count, " tokens are over the limit of ", limit, " tokens for the encoder"));
  }
  request->encoder_tokens = std::move(request->prompt);
  const auto& ids = in.decoder_token_ids().ids();
  if (in.has_decoder_token_ids() && ids.empty()) return Invalid("decoder_token_ids: 0 tokens; at least 1 is needed");
  if (absl::Status s = CheckTokens("decoder_token_ids.ids", ids, context.model->vocab_size); !s.ok()) return s;
  if (ids.empty() && !defaults.decoder_start_token_id.has_value()) {
    return Invalid("decoder_token_ids: required, because the model has no decoder_start_token_id");
  }
  request->prompt.assign(ids.begin(), ids.end());
  if (const auto start = defaults.decoder_start_token_id; start.has_value() && (ids.empty() || ids[0] != *start)) {
    request->prompt.insert(request->prompt.begin(), *start);
  }

  if (!in.has_forced_bos_token_id()) return absl::OkStatus();
  const int64_t decoder_tokens = static_cast<int64_t>(request->prompt.size());
  const int32_t token = in.forced_bos_token_id();
  if (absl::Status s = CheckToken("forced_bos_token_id", token, context.model->vocab_size); !s.ok()) return s;
  if (decoder_tokens > 1) {
    return Invalid("forced_bos_token_id: ", token, " needs a decoder prompt of 1 token; this one has ", decoder_tokens);
  }
  request->forced_first = {token};
  return absl::OkStatus();
}

// What the model's files say of every request's tokens. A request has read its own no_repeat_ngram_size and
// forced_bos_token_id.
void AddModelRules(const GenerationDefaults& defaults, Request* request) {
  const int32_t ngram_size = request->rules.no_repeat_ngram_size;
  request->rules = defaults.rules;
  request->rules.no_repeat_ngram_size = ngram_size;
  if (request->forced_first.empty() && request->prompt.size() == 1 && defaults.forced_bos_token_id.has_value()) {
    request->forced_first = {*defaults.forced_bos_token_id};
  }
  request->forced_last = defaults.forced_eos_token_ids;
}

absl::Status RefuseDecoderFields(const v1::GenerateRequest& in, const ModelInfo& model) {
  const char* field = in.has_decoder_token_ids()     ? "decoder_token_ids"
                      : in.has_forced_bos_token_id() ? "forced_bos_token_id"
                                                     : nullptr;
  if (field == nullptr) return absl::OkStatus();
  return Invalid(field, ": is only for encoder-decoder models; ", model.model_type, " has no encoder");
}

// REQUIRES: the prompt is read.
absl::Status CheckPromptLogprobs(const Request& request, int64_t vocab_size) {
  if (request.prompt_logprobs > vocab_size) {
    return Invalid("prompt_logprobs: ", request.prompt_logprobs, " is over the vocabulary of ", vocab_size);
  }
  const int64_t count = static_cast<int64_t>(request.prompt.size()) * (request.prompt_logprobs + 1);
  if (count <= kMaxPromptLogprobs) return absl::OkStatus();
  return Invalid("prompt_logprobs: ", request.prompt_logprobs, " and one more for each of ", request.prompt.size(),
                 " prompt tokens are ", count, ", over the limit of ", kMaxPromptLogprobs);
}

// The most tokens of an output whose request does not say, by the model's files.
int64_t DefaultMaxTokens(const GenerationDefaults& model, int64_t prompt, int64_t most) {
  if (model.max_new_tokens.has_value()) return std::min(most, *model.max_new_tokens);
  // generate() refuses a longer prompt; here it is as if the model said nothing.
  if (model.max_length.value_or(0) > prompt) return std::min(most, *model.max_length - prompt);
  return most;
}

absl::Status ReadLengths(const v1::Stopping& in, const ValidationContext& context, Request* request) {
  const RequestLimits& limits = context.limits;
  const GenerationDefaults& model = context.defaults;
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
                                              " exceed the limit of ", limit, " tokens for prompt and output"));
  }
  request->max_tokens = wanted;
  if (!in.has_max_tokens()) {
    request->max_tokens = DefaultMaxTokens(model, prompt, limit - prompt);
    if (limits.default_max_tokens > 0) request->max_tokens = std::min(request->max_tokens, limits.default_max_tokens);
  }
  if (!in.has_min_tokens()) {
    const int64_t least = model.min_new_tokens.value_or(std::max<int64_t>(0, model.min_length.value_or(0) - prompt));
    request->min_tokens = std::min(least, request->max_tokens);
  }
  if (request->min_tokens > request->max_tokens) {
    return Invalid("stopping.min_tokens: ", request->min_tokens, " is over max_tokens ", request->max_tokens);
  }
  return absl::OkStatus();
}

absl::Status ReadMessageEnds(const v1::GenerateRequest& in, const std::string& chat_text, const StopCheck& stop,
                             const ValidationContext& context, Request* request) {
  request->message_ends = EndsAfterTokens(request->prompt, context);
  if (!in.has_chat() || !request->message_ends.empty()) return absl::OkStatus();
  absl::StatusOr<std::vector<int32_t>> ends = EndsByRendering(in.chat(), chat_text, request->prompt, stop, context);
  if (!ends.ok()) return ends.status();
  request->message_ends = *std::move(ends);
  return absl::OkStatus();
}

// Refuses what a beam search would ignore, or compute in another way than transformers.
absl::Status RefuseBesideBeams(const v1::GenerateRequest& in, const TokenRules& rules, const ValidatedRequest& read) {
  const v1::Sampling& sampling = in.sampling();
  const SamplingParams& effective = read.request.sampling;
  const int64_t num_stops = static_cast<int64_t>(read.output.text.stop.size());
  const int64_t num_biases = std::count_if(rules.biases.begin(), rules.biases.end(),
                                           [](const TokenRules::Bias& bias) { return !std::isinf(bias.bias); });
  const auto refuse = [](absl::string_view field, auto value, bool refused) {
    if (!refused) return absl::OkStatus();
    return Invalid(field, ": ", ShortestText(value),
                   " cannot be combined with beam_search, which is greedy and uses the model's own distribution");
  };
  Checks checks;
  checks.Add(refuse("best_of", int64_t{in.best_of()}, in.has_best_of()));
  checks.Add(refuse("logprobs", int64_t{in.logprobs()}, in.logprobs() > 0));
  checks.Add(refuse("prompt_logprobs", int64_t{in.prompt_logprobs()}, in.has_prompt_logprobs()));
  checks.Add(refuse("logprobs_after_mask", int64_t{in.logprobs_after_mask()}, in.logprobs_after_mask()));
  checks.Add(refuse("stopping.stop", num_stops, num_stops > 0));
  checks.Add(refuse("sampling.temperature", sampling.temperature(), sampling.temperature() > 0));
  checks.Add(refuse("sampling.top_k", int64_t{sampling.top_k()}, sampling.top_k() > 0));
  checks.Add(refuse("sampling.top_p", sampling.top_p(), sampling.has_top_p() && sampling.top_p() < 1));
  checks.Add(refuse("sampling.min_p", sampling.min_p(), sampling.min_p() > 0));
  // The model's own default is refused too, because transformers would follow it.
  checks.Add(refuse("sampling.repetition_penalty", effective.repetition_penalty, effective.repetition_penalty != 1));
  checks.Add(refuse("sampling.presence_penalty", effective.presence_penalty, effective.presence_penalty != 0));
  checks.Add(refuse("sampling.frequency_penalty", effective.frequency_penalty, effective.frequency_penalty != 0));
  checks.Add(refuse("sampling.logit_bias", static_cast<int64_t>(sampling.logit_bias().size()),
                    !sampling.logit_bias().empty()));
  checks.Add(refuse("sequence_bias of generation_config.json", num_biases, num_biases > 0));
  return checks.status();
}

// Which outputs the engine computes, and which of them are returned. After all that is read of `sampling`.
absl::Status ReadOutputs(const v1::GenerateRequest& in, const ValidationContext& context, ValidatedRequest* out) {
  Request& request = out->request;
  OutputOptions& output = out->output;
  SamplingParams& sampling = request.sampling;
  request.num_outputs = output.num_generated;
  output.logprobs = output.sums_logprobs = in.has_logprobs();
  if (in.has_beam_search()) {
    if (absl::Status s = CheckRange("n", output.num_returned, Closed(1, request.beams.num_beams)); !s.ok()) return s;
    if (absl::Status s = RefuseBesideBeams(in, context.defaults.rules, *out); !s.ok()) return s;
    sampling = {.temperature = 0, .seed = sampling.seed, .num_logprobs = sampling.num_logprobs};
    output.sums_logprobs = true;
    output.deliver_at_end = true;
  } else if (output.num_generated > output.num_returned) {
    sampling.num_logprobs = std::max(0, sampling.num_logprobs);
    output.sums_logprobs = true;
  }
  return absl::OkStatus();
}

absl::Status CheckSession(const v1::GenerateRequest& in, const Request& request) {
  if (!in.has_session_id()) {
    if (in.has_autosave_tokens()) return Invalid("autosave_tokens: can be set only with session_id");
    if (in.has_deliver_saved_only()) return Invalid("deliver_saved_only: can be set only with session_id");
    return absl::OkStatus();
  }
  if (in.deliver_saved_only() && request.autosave_tokens == 0) {
    return Invalid("deliver_saved_only: requires autosave_tokens of at least 1");
  }
  if (request.num_sequences() == 1) return absl::OkStatus();
  return Invalid("session_id: a session has 1 output and no beams; this request has ", request.num_sequences());
}

// The last tokens before the output, where the output's text continues theirs. The answer in a chat is a text of its
// own, and so is the output of a decoder that starts from its start token alone.
std::vector<int32_t> TextContext(const v1::GenerateRequest& in, const Request& request) {
  if (request.encoder_tokens.empty() ? in.has_chat() : !in.has_decoder_token_ids()) return {};
  const std::vector<int32_t>& tokens = request.prompt;
  return {tokens.end() - std::min<int64_t>(kContextTokens, tokens.size()), tokens.end()};
}

// See ValidatedRequest::session_request.
v1::GenerateRequest SessionRequest(const v1::GenerateRequest& in, const ValidatedRequest& valid,
                                   const ValidationContext& context) {
  const Request& request = valid.request;
  const bool has_encoder = !request.encoder_tokens.empty();
  const std::vector<int32_t>& tokens = has_encoder ? request.encoder_tokens : request.prompt;
  v1::GenerateRequest out = in;
  out.clear_request_id();
  out.clear_add_special_tokens();
  out.mutable_token_ids()->mutable_ids()->Assign(tokens.begin(), tokens.end());
  if (has_encoder) {
    out.mutable_decoder_token_ids()->mutable_ids()->Assign(request.prompt.begin(), request.prompt.end());
  }
  out.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(request.max_tokens));
  const std::vector<std::string>& stop = valid.output.text.stop;
  out.mutable_stopping()->mutable_stop()->Assign(stop.begin(), stop.end());
  FillInDefaults(valid, context, &out);
  return out;
}

// The fields that a request for an embedding has in common with one that generates.
v1::GenerateRequest CommonFields(const v1::EmbedRequest& in) {
  v1::GenerateRequest out;
  if (in.has_request_id()) out.set_request_id(in.request_id());
  if (in.has_prompt()) out.set_prompt(in.prompt());
  if (in.has_token_ids()) *out.mutable_token_ids() = in.token_ids();
  if (in.has_add_special_tokens()) out.set_add_special_tokens(in.add_special_tokens());
  if (in.has_share_prefix()) out.set_share_prefix(in.share_prefix());
  if (in.has_cache_salt()) out.set_cache_salt(in.cache_salt());
  if (in.has_priority()) out.set_priority(in.priority());
  return out;
}

absl::Status CheckEmbeddedTokens(int64_t count, int64_t limit) {
  if (count == 0) return Invalid("prompt: 0 tokens; at least 1 is needed");
  if (count <= limit) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("prompt: ", count, " tokens exceed the limit of ", limit, " tokens"));
}

}  // namespace

absl::Status CheckStreamed(const OutputOptions& output) {
  if (output.num_generated == output.num_returned) return absl::OkStatus();
  return Invalid("best_of: ", output.num_generated, " is over n of ", output.num_returned,
                 "; best_of > n cannot be streamed; use Complete");
}

absl::StatusOr<ValidatedRequest> ValidateGenerate(const v1::GenerateRequest& in, const ValidationContext& context,
                                                  uint64_t random_seed, const StopCheck& stop) {
  ValidatedRequest out;
  Request& request = out.request;
  Checks checks;  // the cheap ones come before the tokenizer's work
  checks.Add(ReadRequestFields(in, context, random_seed, &out));
  checks.Add(ReadLogitBias(in.sampling(), context.model->vocab_size, &request.sampling));
  checks.Add(ReadStops(in.stopping(), context, &request, &out.output.text));
  if (checks.status().ok()) checks.Add(ReadOutputs(in, context, &out));
  if (in.has_structure() && checks.status().ok()) {
    absl::StatusOr<GrammarSpec> structure = ReadStructure(in, context);
    checks.Add(structure.status());
    if (structure.ok()) out.structure = *std::move(structure);
  }
  checks.Add(CheckSession(in, request));
  if (!checks.status().ok()) return checks.status();
  std::string chat_text;
  absl::StatusOr<std::vector<int32_t>> prompt = PromptTokens(in, stop, context, &chat_text);
  if (!prompt.ok()) return prompt.status();
  request.prompt = *std::move(prompt);
  const bool has_encoder = context.limits.max_encoder_tokens > 0;
  absl::Status decoder = has_encoder ? ReadDecoder(in, context, &request) : RefuseDecoderFields(in, *context.model);
  if (!decoder.ok()) return decoder;
  AddModelRules(context.defaults, &request);
  if (absl::Status s = ReadLengths(in.stopping(), context, &request); !s.ok()) return s;
  if (absl::Status s = CheckPromptLogprobs(request, context.model->vocab_size); !s.ok()) return s;
  if (context.finds_message_ends) {
    if (absl::Status s = ReadMessageEnds(in, chat_text, stop, context, &request); !s.ok()) return s;
  }
  request.saved = in.has_session_id();
  out.output.text.context = TextContext(in, request);
  out.output.text.min_tokens = request.min_tokens;
  if (out.structure.has_value()) {
    out.structure->own_text = out.output.text.context.empty();
    if (absl::Status s = BeginAfterPrompt(request.prompt, *context.text, &*out.structure); !s.ok()) return s;
  }
  if (request.saved) out.session_request = SessionRequest(in, out, context);
  return out;
}

absl::StatusOr<ValidatedRequest> ValidateEmbed(const v1::EmbedRequest& in, const ValidationContext& context,
                                               const StopCheck& stop) {
  if (context.limits.max_encoder_tokens > 0) {
    return Invalid("input: embeddings are for models without an encoder; ", context.model->model_type, " has one");
  }
  const v1::GenerateRequest common = CommonFields(in);
  ValidatedRequest out;
  Request& request = out.request;
  Checks checks;
  checks.Add(ReadRequestFields(common, context, /*random_seed=*/0, &out));
  checks.Add(CheckRange("pooling", int64_t{in.pooling()}, Closed(0, v1::Pooling_MAX)));
  if (in.input_case() == v1::EmbedRequest::INPUT_NOT_SET) {
    checks.Add(Invalid("input: none of prompt, token_ids is set"));
  }
  if (!checks.status().ok()) return checks.status();
  std::string no_chat;
  absl::StatusOr<std::vector<int32_t>> prompt = PromptTokens(common, stop, context, &no_chat);
  if (!prompt.ok()) return prompt.status();
  request.prompt = *std::move(prompt);
  const int64_t count = static_cast<int64_t>(request.prompt.size());
  if (absl::Status s = CheckEmbeddedTokens(count, context.limits.max_sequence_tokens); !s.ok()) return s;
  request.pooling = in.pooling() == v1::POOLING_MEAN ? Pooling::kMean : Pooling::kLast;
  request.sampling = {};  // the model's defaults are for what samples
  request.rules = {};
  request.draft_tokens = 0;
  if (context.finds_message_ends) request.message_ends = EndsAfterTokens(request.prompt, context);
  out.output.normalize = in.has_normalize() ? in.normalize() : true;
  return out;
}

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& in, const ValidationContext& context,
                                              const StopCheck& stop) {
  v1::TokenizeResponse out;
  bool add_special_tokens = in.has_add_special_tokens() ? in.add_special_tokens() : true;
  if (in.input_case() == v1::TokenizeRequest::kText) {
    out.set_text(in.text());
  } else if (in.input_case() == v1::TokenizeRequest::kChat) {
    if (in.has_add_special_tokens()) return Invalid("add_special_tokens: can be set only with text");
    absl::StatusOr<std::string> text = Render(in.chat(), stop, context);
    if (!text.ok()) return text.status();
    out.set_text(*std::move(text));
    add_special_tokens = false;
  } else {
    return Invalid("input: none of text, chat is set");
  }
  absl::StatusOr<std::vector<int32_t>> tokens =
      EncodeText("text", out.text(), add_special_tokens, kMaxTextTokens, stop, context);
  if (!tokens.ok()) return tokens.status();
  out.mutable_token_ids()->Add(tokens->begin(), tokens->end());
  return out;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& in, const ValidationContext& context,
                                                  const StopCheck& stop) {
  Checks checks;
  checks.Add(CheckCount("token_ids", in.token_ids_size(), kMaxTextTokens));
  checks.Add(CheckTokens("token_ids", in.token_ids(), context.model->vocab_size));
  if (!checks.status().ok()) return checks.status();
  const bool skip_special_tokens = in.has_skip_special_tokens() ? in.skip_special_tokens() : true;
  absl::StatusOr<std::string> text = DecodeText(in.token_ids(), skip_special_tokens, *context.text, stop);
  if (!text.ok()) return text.status();
  v1::DetokenizeResponse out;
  out.set_text(*std::move(text));
  return out;
}

}  // namespace berth
