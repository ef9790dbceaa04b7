#include "server/vllm/messages.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/request/field_checks.h"
#include "text/ebnf.h"

namespace berth {
namespace {

namespace engine = ::vllm::grpc::engine;
using google::protobuf::Message;

struct Refused {
  const char* field;
  const char* why;
};

constexpr Refused kRefusedOfRequest[] = {
    {"kv_transfer_params", "this server hands no cache to others"},
    {"kv_transfer_params_json", "this server hands no cache to others"},
    {"mm_inputs", "this server takes text only"},
    {"extra_mm_inputs", "this server takes text only"},
    {"media_refs", "this server takes text only"},
};
constexpr Refused kRefusedOfSampling[] = {
    {"truncate_prompt_tokens", "this server truncates no prompt; send the tokens that it is to read"},
};

// The fields of berth.v1 by their names here, longest first. "sampling." and "stopping." of berth.v1 are one message.
constexpr std::pair<absl::string_view, absl::string_view> kContractNames[] = {
    {"structure.choice", "sampling_params.choice.choices"},
    {"structure.lark", "sampling_params.grammar"},
    {"structure.", "sampling_params."},
    {"stopping.", "sampling_params."},
    {"sampling.", "sampling_params."},
    {"token_ids.ids", "tokenized.input_ids"},
};
// Names that have no message around them; they stand at the beginning.
constexpr std::pair<absl::string_view, absl::string_view> kContractNamesAtStart[] = {
    {"logprobs:", "sampling_params.logprobs:"},
    {"prompt_logprobs:", "sampling_params.prompt_logprobs:"},
    {"n:", "sampling_params.n:"},
    {"prompt:", "input:"},
};

absl::Status CheckRefused(const Message& message, absl::Span<const Refused> fields, absl::string_view prefix) {
  for (const Refused& refused : fields) {
    const auto* const field = message.GetDescriptor()->FindFieldByName(refused.field);
    const bool set = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) > 0
                                          : message.GetReflection()->HasField(message, field);
    if (set) return Invalid(prefix, refused.field, ": not supported; ", refused.why);
  }
  return absl::OkStatus();
}

absl::Status ReadInput(const engine::GenerateRequest& in, int64_t vocab_size, v1::GenerateRequest* out) {
  switch (in.input_case()) {
    case engine::GenerateRequest::kText:
      out->set_prompt(in.text());
      return absl::OkStatus();
    case engine::GenerateRequest::kTokenized: {
      const auto& ids = in.tokenized().input_ids();
      // Before they become int32.
      if (absl::Status s = CheckTokens("tokenized.input_ids", ids, vocab_size); !s.ok()) return s;
      out->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
      return absl::OkStatus();
    }
    default:
      return Invalid("input: none of tokenized, text is set");
  }
}

void ReadSampling(const engine::SamplingParams& in, v1::Sampling* out) {
  if (in.has_temperature()) out->set_temperature(in.temperature());
  if (in.top_p() != 0) out->set_top_p(in.top_p());
  if (in.top_k() != 0) out->set_top_k(in.top_k());
  if (in.min_p() != 0) out->set_min_p(in.min_p());
  if (in.frequency_penalty() != 0) out->set_frequency_penalty(in.frequency_penalty());
  if (in.presence_penalty() != 0) out->set_presence_penalty(in.presence_penalty());
  if (in.repetition_penalty() != 0) out->set_repetition_penalty(in.repetition_penalty());
  if (in.has_seed()) out->set_seed(static_cast<uint32_t>(in.seed()));
  out->mutable_logit_bias()->insert(in.logit_bias().begin(), in.logit_bias().end());
}

absl::Status ReadStopping(const engine::SamplingParams& in, int64_t vocab_size, v1::Stopping* out) {
  if (in.has_max_tokens()) out->set_max_tokens(in.max_tokens());
  if (in.min_tokens() != 0) out->set_min_tokens(in.min_tokens());
  *out->mutable_stop() = in.stop();
  if (absl::Status s = CheckTokens("sampling_params.stop_token_ids", in.stop_token_ids(), vocab_size); !s.ok()) {
    return s;
  }
  out->mutable_stop_token_ids()->Assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  if (in.ignore_eos()) out->set_ignore_eos(true);
  return absl::OkStatus();
}

absl::Status ReadLogprobs(const engine::SamplingParams& in, const RequestLimits& limits, v1::GenerateRequest* out) {
  const Range range = Closed(0, static_cast<double>(limits.max_logprobs));
  Checks checks;
  if (in.has_logprobs()) {
    checks.Add(CheckRange("sampling_params.logprobs", int64_t{in.logprobs()}, range));
    out->set_logprobs(static_cast<uint32_t>(in.logprobs()));
  }
  if (!in.has_prompt_logprobs()) return checks.status();
  constexpr absl::string_view kField = "sampling_params.prompt_logprobs";
  checks.Add(CheckRange(kField, int64_t{in.prompt_logprobs()}, range));
  // The contract numbers the tokens of the encoder's prompt, which have no logprobs.
  if (limits.max_encoder_tokens > 0) checks.Add(Invalid(kField, ": not supported for a model with an encoder"));
  out->set_prompt_logprobs(static_cast<uint32_t>(in.prompt_logprobs()));
  out->set_return_prompt_token_ids(true);  // for the first token, which has no logprob
  return checks.status();
}

absl::Status ReadGrammar(const std::string& grammar, int64_t limit, v1::Structure* out) {
  if (!IsEbnf(grammar)) {
    out->set_lark(grammar);
    return absl::OkStatus();
  }
  constexpr absl::string_view kField = "sampling_params.grammar";
  if (absl::Status s = CheckText(kField, grammar, limit); !s.ok()) return s;
  absl::StatusOr<std::string> lark = EbnfToLark(grammar);
  if (!lark.ok()) return Invalid(kField, ": ", lark.status().message());
  out->set_lark(*std::move(lark));
  return absl::OkStatus();
}

absl::Status ReadConstraint(const engine::SamplingParams& in, int64_t limit, v1::GenerateRequest* request) {
  if (in.constraint_case() == engine::SamplingParams::CONSTRAINT_NOT_SET) return absl::OkStatus();
  v1::Structure* const out = request->mutable_structure();
  switch (in.constraint_case()) {
    case engine::SamplingParams::kJsonSchema:
      out->set_json_schema(in.json_schema());
      break;
    case engine::SamplingParams::kRegex:
      out->set_regex(in.regex());
      break;
    case engine::SamplingParams::kGrammar:
      return ReadGrammar(in.grammar(), limit, out);
    case engine::SamplingParams::kStructuralTag:
      out->set_structural_tag(in.structural_tag());
      break;
    case engine::SamplingParams::kJsonObject:
      out->set_json_object(in.json_object());
      break;
    case engine::SamplingParams::kChoice:
      *out->mutable_choice()->mutable_choices() = in.choice().choices();
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

void FillTop(const v1::TokenLogprobs& token, engine::TopLogProbs* out) {
  for (const v1::TopLogprob& likely : token.top()) {
    out->add_values(likely.logprob());
    out->add_token_ids(static_cast<uint32_t>(likely.token_id()));
  }
}

// The logprobs of an output's tokens; `with_top`: the likely ones too.
void FillLogprobs(const v1::GenerateResponse& output, bool with_top, engine::OutputLogProbs* out) {
  for (const v1::TokenLogprobs& token : output.logprobs()) {
    out->add_token_logprobs(token.logprob());
    out->add_token_ids(static_cast<uint32_t>(token.token_id()));
    if (with_top) FillTop(token, out->add_top_logprobs());
  }
}

const char* NameOf(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "abort";
  }
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> ToBerth(const engine::GenerateRequest& in, const ValidationContext& context) {
  const engine::SamplingParams& sampling = in.sampling_params();
  const int64_t vocab_size = context.model->vocab_size;
  v1::GenerateRequest out;
  Checks checks;
  checks.Add(CheckRefused(in, kRefusedOfRequest, ""));
  checks.Add(CheckRefused(sampling, kRefusedOfSampling, "sampling_params."));
  checks.Add(CheckRange("data_parallel_rank", int64_t{in.data_parallel_rank()}, Closed(0, 0)));
  checks.Add(ReadLogprobs(sampling, context.limits, &out));
  if (!in.request_id().empty()) out.set_request_id(in.request_id());
  if (sampling.n() != 0) out.set_n(sampling.n());
  out.set_skip_special_tokens(sampling.skip_special_tokens());
  ReadSampling(sampling, out.mutable_sampling());
  checks.Add(ReadStopping(sampling, vocab_size, out.mutable_stopping()));
  checks.Add(ReadConstraint(sampling, context.limits.max_structure_bytes, &out));
  checks.Add(ReadInput(in, vocab_size, &out));
  if (!checks.status().ok()) return checks.status();
  return out;
}

absl::Status WithContractNames(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsOutOfRange(status)) return status;
  std::string message(status.message());
  for (const auto& [name, contract] : kContractNamesAtStart) {
    if (!absl::StartsWith(message, name)) continue;
    message.replace(0, name.size(), contract.data(), contract.size());
    break;
  }
  return absl::Status(status.code(), absl::StrReplaceAll(message, absl::MakeConstSpan(kContractNames)));
}

std::string SamplingDefaultsJson(const GenerationDefaults& defaults) {
  nlohmann::json out = nlohmann::json::object();
  // A float's shortest text, not the digits of the double that it becomes.
  const auto add = [&out](const char* name, const std::optional<float>& value) {
    if (value) out[name] = nlohmann::json::parse(ShortestText(*value));
  };
  add("temperature", defaults.temperature);
  add("top_p", defaults.top_p);
  add("min_p", defaults.min_p);
  add("repetition_penalty", defaults.repetition_penalty);
  if (defaults.top_k) out["top_k"] = *defaults.top_k;
  return out.dump();
}

Answers::Answers(const engine::GenerateRequest& request)
    : stream_(request.stream()),
      top_logprobs_(request.sampling_params().logprobs() > 0),
      prompt_logprobs_(request.sampling_params().has_prompt_logprobs()),
      top_prompt_logprobs_(request.sampling_params().prompt_logprobs() > 0),
      stop_token_ids_(request.sampling_params().stop_token_ids().begin(),
                      request.sampling_params().stop_token_ids().end()) {}

bool Answers::HasPromptLogprobs(const v1::GenerateResponse& output, const v1::Usage& usage) const {
  return prompt_logprobs_ && output.index() == 0 &&
         output.prompt_logprobs_size() + 1 == static_cast<int>(usage.prompt_tokens());
}

void Answers::FillPromptLogprobs(const v1::GenerateResponse& output, engine::InputLogProbs* out) const {
  out->add_token_logprobs();
  out->add_token_ids(static_cast<uint32_t>(first_prompt_token_));
  if (top_prompt_logprobs_) out->add_top_logprobs();
  for (const v1::TokenLogprobs& token : output.prompt_logprobs()) {
    out->add_token_logprobs()->set_value(token.logprob());
    out->add_token_ids(static_cast<uint32_t>(token.token_id()));
    if (top_prompt_logprobs_) FillTop(token, out->add_top_logprobs());
  }
}

engine::GenerateResponse Answers::Complete(const v1::GenerateResponse& output, const v1::Usage& usage) const {
  engine::GenerateResponse response;
  engine::GenerateComplete* const out = response.mutable_complete();
  out->set_finish_reason(NameOf(output.finish_reason()));
  out->set_prompt_tokens(usage.prompt_tokens());
  out->set_completion_tokens(stream_ ? num_tokens_[output.index()] : static_cast<uint32_t>(output.token_ids_size()));
  out->set_cached_tokens(usage.cached_tokens());
  out->set_index(output.index());
  if (!stream_) {
    out->mutable_output_ids()->Assign(output.token_ids().begin(), output.token_ids().end());
    if (output.logprobs_size() > 0) FillLogprobs(output, top_logprobs_, out->mutable_output_logprobs());
    if (HasPromptLogprobs(output, usage)) FillPromptLogprobs(output, out->mutable_input_logprobs());
  }
  const uint32_t stop_token = static_cast<uint32_t>(output.stop_token_id());
  if (output.has_stop_string()) {
    out->set_matched_stop_str(output.stop_string());
  } else if (output.has_stop_token_id() &&
             std::find(stop_token_ids_.begin(), stop_token_ids_.end(), stop_token) != stop_token_ids_.end()) {
    out->set_matched_token_id(stop_token);
  }
  return response;
}

std::vector<engine::GenerateResponse> Answers::Translate(const v1::GenerateResponse& message) {
  std::vector<engine::GenerateResponse> out;
  if (message.prompt_token_ids_size() > 0) first_prompt_token_ = message.prompt_token_ids(0);
  if (!stream_) {
    out.push_back(Complete(message, message.usage()));
    for (const v1::GenerateResponse& other : message.other_outputs()) out.push_back(Complete(other, message.usage()));
    return out;
  }
  if (num_tokens_.size() <= message.index()) num_tokens_.resize(message.index() + 1);
  const bool is_first = num_tokens_[message.index()] == 0;
  num_tokens_[message.index()] += static_cast<uint32_t>(message.token_ids_size());
  const bool ended = message.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  if (message.token_ids_size() > 0 || !ended) {
    engine::GenerateStreamChunk* const chunk = out.emplace_back().mutable_chunk();
    chunk->mutable_token_ids()->Assign(message.token_ids().begin(), message.token_ids().end());
    chunk->set_prompt_tokens(message.usage().prompt_tokens());
    chunk->set_completion_tokens(static_cast<uint32_t>(message.token_ids_size()));
    chunk->set_cached_tokens(message.usage().cached_tokens());
    if (message.logprobs_size() > 0) FillLogprobs(message, top_logprobs_, chunk->mutable_output_logprobs());
    if (is_first && HasPromptLogprobs(message, message.usage())) {
      FillPromptLogprobs(message, chunk->mutable_input_logprobs());
    }
    chunk->set_index(message.index());
  }
  if (ended) out.push_back(Complete(message, message.usage()));
  return out;
}

}  // namespace berth
