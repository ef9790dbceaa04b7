#include "scheduler/request.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {

absl::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kUnread:
      return "unread";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

namespace {

absl::Status CheckEncoderTokens(const Request& request, int64_t max_encoder_tokens) {
  const int64_t count = static_cast<int64_t>(request.encoder_tokens.size());
  if (max_encoder_tokens == 0 && count > 0) {
    return absl::InvalidArgumentError(absl::StrCat("encoder_tokens has ", count, " tokens; the model has no encoder"));
  }
  if (max_encoder_tokens > 0 && (count < 1 || count > max_encoder_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("encoder_tokens has ", count, " tokens, outside [1, ", max_encoder_tokens, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckOutputs(const Request& request, int64_t vocab_size) {
  const int64_t outputs = request.num_outputs;
  const int64_t beams = request.beams.num_beams;
  if (outputs < 1)
    return absl::InvalidArgumentError(absl::StrCat("num_outputs is ", outputs, "; at least 1 is needed"));
  if (beams == 0) return absl::OkStatus();
  if (beams < 2 || 2 * beams > vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_beams is ", beams, ", outside [2, ", vocab_size / 2, "] (half the vocabulary)"));
  }
  if (outputs > beams) {
    return absl::InvalidArgumentError(absl::StrCat("num_outputs is ", outputs, ", over num_beams of ", beams));
  }
  if (request.constraint != nullptr && request.stop_token_ids.empty()) {
    return absl::InvalidArgumentError("a beam search with a constraint needs a stop token: beams end by it alone");
  }
  if (request.sampling.logprobs_after_mask) {
    return absl::InvalidArgumentError(
        "a beam search ranks beams by logprobs before the mask: logprobs_after_mask is set");
  }
  SamplingParams plain = request.sampling;
  plain.temperature = SamplingParams().temperature;
  plain.seed = SamplingParams().seed;
  plain.num_logprobs = SamplingParams().num_logprobs;
  if (plain == SamplingParams()) return absl::OkStatus();
  return absl::InvalidArgumentError("a beam search cannot sample or have penalties or biases");
}

// Refuses what an embedding cannot be combined with.
absl::Status CheckPooling(const Request& request) {
  const absl::string_view other = request.max_tokens != 0           ? "max_tokens above 0"
                                  : request.num_sequences() != 1    ? "several outputs"
                                  : !request.encoder_tokens.empty() ? "an encoder"
                                  : request.prompt_logprobs >= 0    ? "prompt_logprobs"
                                  : request.constraint != nullptr   ? "a constraint"
                                  : request.saved                   ? "a session"
                                  : request.progress != nullptr     ? "progress"
                                                                    : "";
  if (other.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an embedding cannot be combined with ", other));
}

}  // namespace

absl::Status ValidateRequest(const Request& request, int64_t vocab_size, int64_t max_sequence_tokens,
                             int64_t max_encoder_tokens) {
  if (request.prompt.empty()) return absl::InvalidArgumentError("prompt has no token; at least 1 is needed");
  if (request.pooling != Pooling::kNone) {
    if (absl::Status status = CheckPooling(request); !status.ok()) return status;
  } else if (request.max_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens is ", request.max_tokens, "; at least 1 is needed"));
  }
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  // Written so that no sum can overflow.
  if (prompt_tokens > max_sequence_tokens || request.max_tokens > max_sequence_tokens - prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("prompt of ", prompt_tokens, " tokens and max_tokens of ",
                                                   request.max_tokens, " exceed max_sequence_tokens of ",
                                                   max_sequence_tokens));
  }
  if (absl::Status status = CheckEncoderTokens(request, max_encoder_tokens); !status.ok()) return status;
  if (absl::Status status = CheckOutputs(request, vocab_size); !status.ok()) return status;
  if (request.prompt_logprobs > vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt_logprobs is ", request.prompt_logprobs, ", over the vocabulary of ", vocab_size));
  }
  if (request.prompt_logprobs >= 0 && request.beams.num_beams > 0) {
    return absl::InvalidArgumentError("prompt_logprobs cannot be combined with a beam search");
  }
  const auto outside = [vocab_size](int32_t token) { return token < 0 || token >= vocab_size; };
  const std::vector<int32_t> none;
  const std::vector<int32_t>& output = request.progress != nullptr ? request.progress->tokens : none;
  const bool over = request.progress == nullptr || request.progress->finish != FinishReason::kNone;
  if (static_cast<int64_t>(output.size()) + (over ? 0 : 1) > request.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("progress of ", output.size(), " tokens",
                                                   over ? "" : " and one more", " exceeds max_tokens of ",
                                                   request.max_tokens));
  }
  for (const auto& [what, tokens] :
       {std::pair<absl::string_view, const std::vector<int32_t>*>{"prompt", &request.prompt},
        {"progress", &output},
        {"encoder_tokens", &request.encoder_tokens},
        {"forced_first", &request.forced_first},
        {"forced_last", &request.forced_last}}) {
    for (int32_t token : *tokens) {
      if (!outside(token)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(what, " has token ", token, ", outside the vocabulary of ", vocab_size));
    }
  }
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    if (outside(token)) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias has token ", token, ", outside the vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace berth
