#include "server/delivery/request_output.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

// The way of a token:
//
//   OnEvent ----------> Deliver --> its output's assembler --> pending_ --> in_flight_ --> writer_
//      |                   ^        AddToken, Finish            Pending      Pump           Write, OnWritten
//      +--> held_ -- Next -+        only with OutputOptions::saved_only; OnSaved lets events go
//
// A message of pending_ takes its output's tokens until Pump moves it or, in a stream, until it has
// kMaxTokensPerMessage. Unless messages flow (flows()), Pump moves nothing before End. Pump passes the last message to
// OutputWriter::End, with the status.
//
// What becomes of a stream by the bytes of pending_ and in_flight_ (undelivered_), where L is UndeliveredLimit():
//
//   0 ---------------------- L / 8 ------------------ L / 4 ------------------ L ---------->
//     OnWritten continues it   |                        |   Count pauses it    |   Count ends it (UnreadError)
//
// What comes all at once does not count against L: no client can have read any of it. That is a prompt's logprobs, the
// tokens of a session that resumes, and those that a save has held back. It pauses the stream, and ends it only while
// the server holds more than its limit and the stream more than max_undelivered_bytes.
namespace berth {
namespace {

// Keeps a message well below the 4 MB that gRPC clients accept by default, twenty logprobs a token included.
constexpr int kMaxTokensPerMessage = 1024;
// A token's share of a message without logprobs: its id, its text, and what a message takes by itself.
constexpr int64_t kTokenBytes = 40;
// Parts of the most that may be unread, at which a request is paused and continued.
constexpr int64_t kPausePart = 4;
constexpr int64_t kUnpausePart = 8;

}  // namespace

RequestOutput::RequestOutput(Options options, const TextCodec* codec, OutputWriter* writer)
    : options_(std::move(options)), writer_(writer) {
  for (int64_t i = 0; i < options_.output.num_generated; ++i) {
    outputs_.push_back({.assembler = OutputAssembler(codec, options_.output, options_.num_prompt_tokens)});
  }
  times_.arrival = options_.arrival;
}

RequestOutput::~RequestOutput() {
  MutexLock lock(&mutex_);
  AddUndelivered(-undelivered_);
}

bool RequestOutput::OnEvent(const TokenEvent& event, absl::Time now) {
  if (!options_.output.saved_only) return Deliver(event, now);
  held_.Add(event);
  return DeliverSaved(now);
}

bool RequestOutput::OnSaved(const SaveEvent& save, absl::Time now) {
  held_.OnSaved(save);
  return DeliverSaved(now);
}

bool RequestOutput::DeliverSaved(absl::Time now) {
  while (const std::optional<TokenEvent> event = held_.Next()) {
    if (!Deliver(*event, now)) return false;
  }
  return !over_;
}

bool RequestOutput::Deliver(const TokenEvent& event, absl::Time now) {
  if (over_) return false;
  ReportTimes(event, now);
  absl::Status status = Take(event);
  const bool all_ended =
      std::all_of(outputs_.begin(), outputs_.end(), [](const Output& output) { return output.ended; });
  if (!status.ok() || all_ended) {
    const bool engine_ended = event.finish != FinishReason::kNone && event.outputs_left == 0;
    const bool of_all = event.finish != FinishReason::kNone && !event.alone;
    const FinishReason reason = of_all                   ? event.finish
                                : status.ok()            ? FinishReason::kStop
                                : over_limit_ && flows() ? FinishReason::kUnread
                                : over_limit_            ? FinishReason::kCancelled
                                                         : FinishReason::kError;
    if (!engine_ended && !status.ok()) options_.owner->Cancel(key(), reason);
    End(reason, std::move(status));
    return false;
  }
  Pump();
  return true;
}

absl::Status RequestOutput::Take(const TokenEvent& event) {
  if (event.token >= 0 && !outputs_[event.output].ended) {
    if (absl::Status s = AddToken(event); !s.ok()) return s;
    const bool goes_on = event.finish == FinishReason::kNone;
    if (outputs_[event.output].ended && goes_on && outputs_.size() == 1) {
      options_.owner->Cancel(key(), FinishReason::kStop);
    } else if (outputs_[event.output].ended && goes_on) {
      options_.owner->CancelOutput(key(), event.output, FinishReason::kStop);
    }
  }
  if (!event.embedding.empty()) writer_->SetEmbedding(MakeEmbedding(event, options_.output));
  return event.finish == FinishReason::kNone ? absl::OkStatus() : Finish(event);
}

void RequestOutput::ReportTimes(const TokenEvent& event, absl::Time now) {
  if (event.replayed) {
    if (event.finish != FinishReason::kNone) times_ = event.times;
    return;
  }
  const bool told_before = std::any_of(outputs_.begin(), outputs_.end(),
                                       [](const Output& output) { return output.last_token != absl::InfinitePast(); });
  const bool first = event.token >= 0 && !told_before;
  times_ = event.times;
  times_.arrival = options_.arrival;  // an event that is not the engine's has no times
  for (Output& output : outputs_) output.assembler.set_num_cached_tokens(event.num_cached);
  times_.finished = now;  // an end by a stop string happens here, not in the engine
  if (event.token < 0) return;
  Output& output = outputs_[event.output];
  if (first) options_.owner->OnFirstToken(times_);
  // Beams come all at once.
  const bool follows = output.last_token != absl::InfinitePast() && !options_.output.deliver_at_end;
  if (follows) options_.owner->OnInterToken(now - output.last_token);
  output.last_token = now;
}

absl::Status RequestOutput::AddToken(const TokenEvent& event) {
  MutexLock lock(&mutex_);
  Output& output = outputs_[event.output];
  const bool skipped = output.assembler.skips_next();
  v1::GenerateResponse dropped;
  Waiting* waiting = skipped ? nullptr : Pending(event.output);
  v1::GenerateResponse* message = skipped ? &dropped : &waiting->message;
  const absl::StatusOr<bool> stopped = output.assembler.AddToken(event, message);
  if (!stopped.ok()) return stopped.status();
  output.logprob_sum += event.logprob;
  ++num_tokens_;
  if (event.replayed) ++num_replayed_;
  if (skipped && !*stopped) return absl::OkStatus();
  if (skipped) {  // how it ended is said again
    waiting = Pending(event.output);
    message = &waiting->message;
    *message->mutable_usage() = dropped.usage();
    message->set_finish_reason(dropped.finish_reason());
    message->set_stop_string(dropped.stop_string());
  }
  message->mutable_usage()->set_completion_tokens(static_cast<uint32_t>(num_tokens_));
  if (*stopped) Complete(event.output, message);
  return skipped ? absl::OkStatus() : Count(waiting, event.replayed || options_.output.saved_only);
}

absl::Status RequestOutput::Count(Waiting* waiting, bool sudden) {
  int64_t bytes = kTokenBytes;
  const v1::GenerateResponse& message = waiting->message;
  if (message.logprobs_size() > 0) {
    const v1::TokenLogprobs& last = message.logprobs(message.logprobs_size() - 1);
    bytes += static_cast<int64_t>(options_.stream ? last.SpaceUsedLong() : last.ByteSizeLong());
  }
  int64_t sudden_bytes = sudden ? bytes : 0;
  if (message.prompt_logprobs_size() > 0 && waiting->bytes == 0) {  // its first token
    int64_t prompt_bytes = 0;
    for (const v1::TokenLogprobs& token : message.prompt_logprobs()) {
      prompt_bytes += static_cast<int64_t>(options_.stream ? token.SpaceUsedLong() : token.ByteSizeLong());
    }
    bytes += prompt_bytes;
    sudden_bytes += prompt_bytes;
  }
  waiting->bytes += bytes;
  waiting->sudden_bytes += sudden_bytes;
  sudden_bytes_ += sudden_bytes;
  AddUndelivered(bytes);
  if (!options_.stream) {
    over_limit_ = undelivered_ > kMaxMessageBytes;
    if (!over_limit_) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrCat("the answer is over the limit of ", kMaxMessageBytes, " bytes after ",
                                              num_tokens_, " tokens; use Generate, or ask for fewer logprobs"));
  }
  const int64_t limit = UndeliveredLimit();
  const bool crowds = undelivered_ > options_.max_undelivered_bytes && options_.undelivered->full();
  if (undelivered_ - sudden_bytes_ > limit || (flows() && crowds)) {
    if (flows()) return UnreadError();
    over_limit_ = true;
    return absl::OutOfRangeError(absl::StrCat("the answer, which is sent at its end, is over the limit of ", limit,
                                              " bytes after ", num_tokens_,
                                              " tokens; ask for fewer beams, tokens or logprobs"));
  }
  if (undelivered_ > limit / kPausePart) SetPaused(true);
  return absl::OkStatus();
}

int64_t RequestOutput::UndeliveredLimit() const {
  const bool full = flows() && options_.undelivered->full();
  return full ? std::min(kSmallBacklogBytes, options_.max_undelivered_bytes) : options_.max_undelivered_bytes;
}

void RequestOutput::SetPaused(bool paused) {
  if (paused == paused_ || ended_ || !flows()) return;
  paused_ = paused;
  options_.owner->SetPaused(key(), paused);
}

absl::Status RequestOutput::UnreadError() {
  over_limit_ = true;
  options_.undelivered->CountEnded();
  return absl::ResourceExhaustedError(
      absl::StrCat("the client does not read: ", undelivered_, " bytes wait after ", num_tokens_, " tokens"));
}

void RequestOutput::AddUndelivered(int64_t bytes) {
  undelivered_ += bytes;
  if (flows() && !handed_over_) options_.undelivered->Add(bytes);
}

int64_t RequestOutput::HandOverUnread() {
  if (flows()) options_.undelivered->Add(-undelivered_);
  handed_over_ = true;
  return undelivered_;
}

void RequestOutput::DropPending() {
  for (const Waiting& waiting : pending_) {
    AddUndelivered(-waiting.bytes);
    sudden_bytes_ -= waiting.sudden_bytes;
  }
  pending_.clear();
}

absl::Status RequestOutput::Finish(const TokenEvent& event) {
  MutexLock lock(&mutex_);
  if (event.finish == FinishReason::kUnread) return UnreadError();
  if (absl::Status s = StatusOfEnd(event); !s.ok()) {
    if (!event.alone) return s;
    Output& output = outputs_[event.output];
    output.failed = !output.ended;
    if (std::all_of(outputs_.begin(), outputs_.end(), [](const Output& o) { return o.failed; })) return s;
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const bool own = static_cast<int64_t>(i) == event.output;
    if (outputs_[i].ended || !(own || event.outputs_left == 0)) continue;
    v1::GenerateResponse* message = &Pending(i)->message;
    const int32_t stop_token = own ? event.stop_token : -1;
    if (absl::Status s = outputs_[i].assembler.Finish(event.finish, stop_token, message); !s.ok()) return s;
    message->mutable_usage()->set_completion_tokens(static_cast<uint32_t>(num_tokens_));
    Complete(i, message);
  }
  return absl::OkStatus();
}

void RequestOutput::Complete(size_t output, v1::GenerateResponse* message) {
  outputs_[output].ended = true;
  *message->mutable_timings() = MakeTimings(times_);
  if (options_.output.sums_logprobs) message->set_cumulative_logprob(outputs_[output].logprob_sum);
}

std::vector<size_t> RequestOutput::Ranking() const {
  std::vector<size_t> order(outputs_.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t num_returned = static_cast<size_t>(options_.output.num_returned);
  if (num_returned == order.size()) return order;
  const auto mean = [&](size_t i) {
    return outputs_[i].logprob_sum / static_cast<double>(std::max<int64_t>(1, outputs_[i].assembler.num_tokens()));
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return outputs_[a].failed != outputs_[b].failed ? outputs_[b].failed : mean(a) > mean(b);
  });
  order.resize(num_returned);
  return order;
}

void RequestOutput::JoinPending() {
  std::vector<v1::GenerateResponse> by_output(outputs_.size());
  int64_t bytes = 0, sudden_bytes = 0;
  for (Waiting& waiting : pending_) {
    bytes += waiting.bytes;
    sudden_bytes += waiting.sudden_bytes;
    by_output[waiting.message.index()] = std::move(waiting.message);
  }
  v1::GenerateResponse joined;
  google::protobuf::RepeatedPtrField<v1::TokenLogprobs> prompt_logprobs;  // of the first output, returned or not
  prompt_logprobs.Swap(by_output[0].mutable_prompt_logprobs());
  uint32_t rank = 0;
  for (size_t i : Ranking()) {
    v1::GenerateResponse& message = rank == 0 ? joined : *joined.add_other_outputs();
    message = std::move(by_output[i]);
    message.clear_prompt_logprobs();
    message.set_index(rank);
    message.clear_request_id();
    message.clear_prompt_token_ids();
    message.clear_warnings();
    if (rank++ == 0) continue;
    message.clear_usage();
    message.clear_timings();
  }
  joined.set_request_id(request_id());
  joined.mutable_prompt_logprobs()->Swap(&prompt_logprobs);
  joined.mutable_prompt_token_ids()->Add(options_.prompt_token_ids.begin(), options_.prompt_token_ids.end());
  joined.mutable_warnings()->Add(warnings_.begin(), warnings_.end());
  joined.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(num_tokens_));
  *joined.mutable_timings() = MakeTimings(times_);
  pending_.clear();
  pending_.push_back({std::move(joined), bytes, sudden_bytes});
}

absl::Status RequestOutput::StatusOfEnd(const TokenEvent& event) const {
  const int64_t tokens = num_tokens_;
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
  options_.owner->OnEnded({.key = key(),
                           .request_id = request_id(),
                           .reason = reason,
                           .num_prompt_tokens = options_.num_prompt_tokens,
                           .num_tokens = num_tokens_,
                           .num_replayed = num_replayed_,
                           .num_outputs = options_.output.num_generated,
                           .times = times_,
                           .status = status});
  int64_t unread = 0;
  {
    MutexLock lock(&mutex_);
    if (!options_.stream && outputs_.size() > 1) {
      if (status.ok()) JoinPending();
      if (!status.ok()) DropPending();
    }
    if (over_limit_) DropPending();
    unread = HandOverUnread();
  }
  // Before ended_, after which another thread may call the writer's End.
  if (unread > 0) writer_->SetUnread(unread);
  {
    MutexLock lock(&mutex_);
    ended_ = true;
    status_ = std::move(status);
  }
  Pump();
}

RequestOutput::Waiting* RequestOutput::Pending(size_t output) {
  const auto mine = [output](const Waiting& waiting) { return waiting.message.index() == output; };
  const auto last = std::find_if(pending_.rbegin(), pending_.rend(), mine);
  const bool none = last == pending_.rend();
  const bool full = !none && options_.stream && last->message.token_ids_size() >= kMaxTokensPerMessage;
  Waiting* const waiting = none || full ? &pending_.emplace_back() : &*last;
  v1::GenerateResponse* const message = &waiting->message;
  message->set_index(static_cast<uint32_t>(output));
  if (first_) {
    first_ = false;
    message->set_request_id(request_id());
    message->mutable_prompt_token_ids()->Add(options_.prompt_token_ids.begin(), options_.prompt_token_ids.end());
    message->mutable_warnings()->Add(warnings_.begin(), warnings_.end());
  }
  return waiting;
}

void RequestOutput::Pump() {
  bool end = false;
  v1::GenerateResponse* message = nullptr;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    if (writing_ || end_sent_) return;
    if (unreachable_) DropPending();
    end = ended_ && pending_.size() <= 1;
    if (!end && (pending_.empty() || !(flows() || ended_))) return;
    if (!pending_.empty()) {
      in_flight_ = std::move(pending_.front().message);
      in_flight_bytes_ = pending_.front().bytes;
      in_flight_sudden_bytes_ = pending_.front().sudden_bytes;
      pending_.pop_front();
      message = &in_flight_;
      // Messages of several outputs go out in another order than their tokens came.
      if (outputs_.size() > 1) message->mutable_usage()->set_completion_tokens(static_cast<uint32_t>(num_tokens_));
    }
    (end ? end_sent_ : writing_) = true;
    if (end) status = status_;
  }
  // Outside the lock: gRPC may answer at once. No other thread gets here before OnWritten, and none after End.
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
    AddUndelivered(-std::exchange(in_flight_bytes_, 0));
    sudden_bytes_ -= std::exchange(in_flight_sudden_bytes_, 0);
    if (undelivered_ <= UndeliveredLimit() / kUnpausePart) SetPaused(false);
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
  options_.owner->Cancel(key(), cause == EndCause::kDeadline ? FinishReason::kDeadline : FinishReason::kCancelled);
}

void RequestOutput::Warn(std::vector<std::string> warnings) {
  MutexLock lock(&mutex_);
  warnings_ = std::move(warnings);
}

void RequestOutput::Refuse(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    ended_ = true;
    status_ = std::move(status);
  }
  Pump();
}

void RequestOutput::OnSubmitted() {
  EndCause cause;
  {
    MutexLock lock(&mutex_);
    if (ended_) return;
    cause = cause_;
  }
  if (cause == EndCause::kNone) return;
  options_.owner->Cancel(key(), cause == EndCause::kDeadline ? FinishReason::kDeadline : FinishReason::kCancelled);
}

}  // namespace berth
