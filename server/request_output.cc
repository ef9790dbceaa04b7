#include "server/request_output.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

// Keeps a message well below the 4 MB that gRPC clients accept by default, twenty logprobs a token included.
constexpr int kMaxTokensPerMessage = 1024;

}  // namespace

RequestOutput::RequestOutput(Options options, const TextCodec* codec, OutputWriter* writer)
    : options_(std::move(options)), writer_(writer), assembler_(codec, options_.output, options_.num_prompt_tokens) {
  times_.arrival = options_.arrival;
}

bool RequestOutput::OnEvent(const TokenEvent& event, absl::Time now) {
  if (over_) return false;
  ReportTimes(event, now);
  if (event.token >= 0) {
    absl::StatusOr<bool> stopped = AddToken(event);
    if (!stopped.ok() || *stopped) {
      const FinishReason reason = stopped.ok() ? FinishReason::kStop : FinishReason::kError;
      if (event.finish == FinishReason::kNone) options_.hooks.cancel(key(), reason);
      End(reason, stopped.status());
      return false;
    }
  }
  if (event.finish != FinishReason::kNone) {
    End(event.finish, Finish(event));
    return false;
  }
  Pump();
  return true;
}

void RequestOutput::ReportTimes(const TokenEvent& event, absl::Time now) {
  if (event.replayed) {
    if (event.finish != FinishReason::kNone) times_ = event.times;
    return;
  }
  const bool first = event.token >= 0 && last_token_ == absl::InfinitePast();
  if (first || event.finish != FinishReason::kNone) times_ = event.times;
  times_.finished = now;  // an end by a stop string happens here, not in the engine
  if (first || event.finish != FinishReason::kNone) assembler_.set_num_cached_tokens(event.num_cached);
  if (event.token < 0) return;
  if (first && options_.hooks.first_token) options_.hooks.first_token(times_);
  if (!first && options_.hooks.inter_token) options_.hooks.inter_token(now - last_token_);
  last_token_ = now;
}

absl::StatusOr<bool> RequestOutput::AddToken(const TokenEvent& event) {
  MutexLock lock(&mutex_);
  const bool skipped = assembler_.skips_next();
  v1::GenerateResponse dropped;
  v1::GenerateResponse* message = skipped ? &dropped : Pending();
  absl::StatusOr<bool> stopped = assembler_.AddToken(event, message);
  if (!stopped.ok() || !*stopped) return stopped;
  if (skipped) {  // how it ended is said again
    message = Pending();
    *message->mutable_usage() = dropped.usage();
    message->set_finish_reason(dropped.finish_reason());
    message->set_stop_string(dropped.stop_string());
  }
  *message->mutable_timings() = MakeTimings(times_);
  return stopped;
}

absl::Status RequestOutput::Finish(const TokenEvent& event) {
  MutexLock lock(&mutex_);
  if (absl::Status s = StatusOfEnd(event); !s.ok()) return s;
  v1::GenerateResponse* message = Pending();
  if (absl::Status s = assembler_.Finish(event.finish, event.stop_token, message); !s.ok()) return s;
  *message->mutable_timings() = MakeTimings(times_);
  return absl::OkStatus();
}

absl::Status RequestOutput::StatusOfEnd(const TokenEvent& event) const {
  const int64_t tokens = assembler_.num_tokens();
  switch (event.finish) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      return absl::OkStatus();
    case FinishReason::kDeadline:
      return absl::DeadlineExceededError(absl::StrCat("the deadline passed after ", tokens, " tokens"));
    case FinishReason::kCancelled:
      if (cause_ == EndCause::kAborted) return absl::OkStatus();
      if (cause_ == EndCause::kClientGone) return absl::CancelledError("cancelled by the client");
      return absl::UnavailableError(absl::StrCat("the server shut down after ", tokens, " tokens"));
    default:
      return event.error.ok() ? absl::InternalError("the request failed without a message") : event.error;
  }
}

void RequestOutput::End(FinishReason reason, absl::Status status) {
  over_ = true;
  options_.hooks.ended(
      EndedRequest{key(), request_id(), reason, options_.num_prompt_tokens, assembler_.num_tokens(), times_, status});
  {
    MutexLock lock(&mutex_);
    ended_ = true;
    status_ = std::move(status);
  }
  Pump();
}

v1::GenerateResponse* RequestOutput::Pending() {
  const bool full = options_.stream && !pending_.empty() && pending_.back().token_ids_size() >= kMaxTokensPerMessage;
  if (pending_.empty() || full) pending_.emplace_back();
  v1::GenerateResponse* message = &pending_.back();
  if (first_) {
    first_ = false;
    message->set_request_id(request_id());
    message->mutable_prompt_token_ids()->Add(options_.prompt_token_ids.begin(), options_.prompt_token_ids.end());
  }
  return message;
}

void RequestOutput::Pump() {
  bool end = false;
  v1::GenerateResponse* message = nullptr;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    if (writing_ || end_sent_) return;
    if (unreachable_) pending_.clear();
    end = ended_ && pending_.size() <= 1;
    if (!end && (pending_.empty() || !(options_.stream || ended_))) return;
    if (!pending_.empty()) {
      in_flight_ = std::move(pending_.front());
      pending_.pop_front();
      message = &in_flight_;
    }
    (end ? end_sent_ : writing_) = true;
    if (end) status = status_;
  }
  // Outside the lock: gRPC may answer at once. Nobody else gets here before OnWritten, and nobody at all after End.
  if (end) {
    writer_->End(message, status);
  } else {
    writer_->Write(message);
  }
}

void RequestOutput::OnWritten(bool ok) {
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    unreachable_ = unreachable_ || !ok;
  }
  if (!ok) Cancel(EndCause::kClientGone);
  Pump();
}

void RequestOutput::Cancel(EndCause cause) {
  {
    MutexLock lock(&mutex_);
    if (ended_ || cause_ != EndCause::kNone) return;
    cause_ = cause;
  }
  options_.hooks.cancel(key(), cause == EndCause::kDeadline ? FinishReason::kDeadline : FinishReason::kCancelled);
}

void RequestOutput::OnSubmitted() {
  EndCause cause;
  {
    MutexLock lock(&mutex_);
    if (ended_) return;
    cause = cause_;
  }
  if (cause == EndCause::kNone) return;
  options_.hooks.cancel(key(), cause == EndCause::kDeadline ? FinishReason::kDeadline : FinishReason::kCancelled);
}

}  // namespace berth
