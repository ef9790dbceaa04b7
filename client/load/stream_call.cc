#include "client/load/stream_call.h"

#include <utility>

namespace berth::cli {

StreamCall::StreamCall(const Options& options, WorkItem item, Done done)
    : options_(options), request_(std::move(item.request)), done_(std::move(done)) {
  record_.index = options.index;
  record_.shortened = item.shortened;
  if (options.verify) {
    check_.emplace(StreamCheck::Expected{
        .output_tokens = item.output_tokens, .prompt_tokens = item.prompt_tokens, .reference = options.reference});
  }
}

void StreamCall::Start(v1::Inference::Stub* stub) {
  if (options_.timeout != absl::InfiniteDuration()) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(options_.timeout));
  }
  record_.sent = Now();
  record_.intended = options_.intended.value_or(record_.sent);
  stub->async()->Generate(&context_, &request_, this);
  StartRead(&response_);
  StartCall();
}

void StreamCall::RecordTokens(absl::Duration now, int num_tokens) {
  if (record_.output_tokens == 0) {
    record_.first_token = now;
  } else {
    record_.gap_seconds.push_back(static_cast<float>(absl::ToDoubleSeconds(now - record_.last_token)));
  }
  record_.gap_seconds.insert(record_.gap_seconds.end(), num_tokens - 1, 0.0f);
  record_.last_token = now;
  record_.output_tokens += num_tokens;
  options_.output_tokens->fetch_add(num_tokens, std::memory_order_relaxed);
}

void StreamCall::OnReadDone(bool ok) {
  if (!ok) return;  // the stream is over: OnDone follows
  if (response_.token_ids_size() > 0) RecordTokens(Now(), response_.token_ids_size());
  record_.prompt_tokens = response_.usage().prompt_tokens();
  record_.cached_tokens = response_.usage().cached_tokens();
  if (check_) {
    check_->OnMessage(response_);
  } else if (options_.keep_tokens) {
    record_.token_ids.insert(record_.token_ids.end(), response_.token_ids().begin(), response_.token_ids().end());
  }
  StartRead(&response_);
}

void StreamCall::OnDone(const grpc::Status& status) {
  record_.end = Now();
  record_.code = status.error_code();
  record_.error = status.error_message();
  if (check_) {
    if (status.ok()) {
      check_->OnEnd();
      record_.faults = check_->faults();
    }
    record_.token_ids = check_->token_ids();
  }
  // From here on nothing of this object is touched.
  const Done done = std::move(done_);
  done(std::move(record_));
}

}  // namespace berth::cli
