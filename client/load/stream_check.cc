#include "client/load/stream_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace berth::cli {
namespace {

constexpr size_t kMaxFaults = 4;

}  // namespace

void StreamCheck::Fault(std::string text) {
  if (faults_.size() >= kMaxFaults) faults_.pop_back();
  faults_.push_back(std::move(text));
}

// Each message is judged by what it adds, so that one lost token is one fault.
void StreamCheck::CheckUsage(const v1::GenerateResponse& message) {
  const int64_t counted = message.usage().completion_tokens();
  const int64_t added = counted - counted_;
  if (added != message.token_ids_size()) {
    Fault(absl::StrCat("message ", num_messages_, ": carries ", message.token_ids_size(),
                       " tokens, but its usage goes from ", counted_, " to ", counted,
                       " output tokens: ", added > message.token_ids_size() ? "lost" : "repeated", " tokens"));
  }
  counted_ = counted;
  const int64_t prompt_tokens = message.usage().prompt_tokens();
  if (expected_.prompt_tokens < 0) expected_.prompt_tokens = prompt_tokens;
  if (prompt_tokens != expected_.prompt_tokens) {
    Fault(absl::StrCat("message ", num_messages_, ": usage counts ", prompt_tokens, " prompt tokens, expected ",
                       expected_.prompt_tokens));
  }
}

void StreamCheck::OnMessage(const v1::GenerateResponse& message) {
  ++num_messages_;
  if ((num_messages_ == 1) == message.request_id().empty()) {
    Fault(absl::StrCat("message ", num_messages_, ": request_id is '", message.request_id(),
                       num_messages_ == 1 ? "' in the first message" : "' after the first message"));
  }
  if (finish_reason_ != v1::FINISH_REASON_UNSPECIFIED) {
    Fault(absl::StrCat("message ", num_messages_, ": comes after the one with the finish reason"));
  }
  finish_reason_ = message.finish_reason();
  CheckUsage(message);
  token_ids_.insert(token_ids_.end(), message.token_ids().begin(), message.token_ids().end());
}

void StreamCheck::CheckReference() {
  const std::vector<int32_t>& reference = *expected_.reference;
  const auto [here, there] = std::mismatch(token_ids_.begin(), token_ids_.end(), reference.begin(), reference.end());
  if (here == token_ids_.end() && there == reference.end()) return;
  const auto text = [](const std::vector<int32_t>& ids, std::vector<int32_t>::const_iterator at) {
    return at == ids.end() ? std::string("the end") : absl::StrCat(*at);
  };
  Fault(absl::StrCat("output token ", here - token_ids_.begin(), " is ", text(token_ids_, here), ", but ",
                     text(reference, there), " when the request was alone"));
}

void StreamCheck::OnEnd() {
  if (finish_reason_ != v1::FINISH_REASON_LENGTH) {
    Fault(absl::StrCat("the last message has ", v1::FinishReason_Name(finish_reason_),
                       ", expected FINISH_REASON_LENGTH"));
  }
  if (static_cast<int64_t>(token_ids_.size()) != expected_.output_tokens) {
    Fault(absl::StrCat("received ", token_ids_.size(), " tokens, asked for ", expected_.output_tokens));
  }
  if (expected_.reference != nullptr) CheckReference();
}

}  // namespace berth::cli
