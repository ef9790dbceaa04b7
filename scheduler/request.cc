#include "scheduler/request.h"

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
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

absl::Status ValidateRequest(const Request& request, int64_t vocab_size, int64_t max_sequence_tokens) {
  if (request.prompt.empty()) return absl::InvalidArgumentError("prompt has no token; at least 1 is needed");
  if (request.max_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens is ", request.max_tokens, "; at least 1 is needed"));
  }
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  // Written so that no sum can overflow.
  if (prompt_tokens > max_sequence_tokens || request.max_tokens > max_sequence_tokens - prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("prompt of ", prompt_tokens, " tokens and max_tokens of ",
                                                   request.max_tokens, " exceed max_sequence_tokens of ",
                                                   max_sequence_tokens));
  }
  const auto outside = [vocab_size](int32_t token) { return token < 0 || token >= vocab_size; };
  for (int32_t token : request.prompt) {
    if (outside(token)) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt has token ", token, ", outside the vocabulary of ", vocab_size));
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
