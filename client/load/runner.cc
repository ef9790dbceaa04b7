#include "client/load/runner.h"

#include <algorithm>
#include <utility>

namespace berth::cli {

Runner::Runner(Options options, const Workload* workload, v1::Inference::Stub* stub)
    : options_(std::move(options)),
      workload_(workload),
      stub_(stub),
      start_(StreamCall::Clock::now()),
      arrivals_(options_.rate > 0 ? options_.rate : 1, options_.seed) {}

std::optional<absl::Duration> Runner::NextArrival() {
  if (!next_arrival_) {
    if (options_.arrivals.empty()) {
      next_arrival_ = arrivals_.Next();
    } else if (num_started_ < static_cast<int64_t>(options_.arrivals.size())) {
      next_arrival_ = options_.arrivals[num_started_];
    }
  }
  return next_arrival_;
}

bool Runner::MayStartConversation() const {
  const int64_t most = workload_->num_conversations();
  return (most == 0 || num_started_ < most) && num_talking_ < options_.concurrency;
}

Runner::Next Runner::Await(Answered* answered, absl::Duration* intended) {
  MutexLock lock(&mutex_);
  while (!cancelled_ && (options_.num_requests == 0 || num_sent_ < options_.num_requests)) {
    if (!answered_.empty()) {
      *answered = std::move(answered_.front());
      answered_.pop_front();
      return Next::kTurn;
    }
    std::optional<absl::Duration> start;  // of the next conversation
    if (open_loop()) {
      start = NextArrival();
    } else if (MayStartConversation()) {
      start = Now();
    }
    if (start && *start >= options_.duration) start.reset();
    if (start && *start <= Now()) {
      next_arrival_.reset();
      *intended = *start;
      return Next::kConversation;
    }
    if (start) {
      changed_.WaitFor(&mutex_, *start - Now());
    } else if (num_talking_ > 0) {
      changed_.Wait(&mutex_);
    } else {
      return Next::kEnd;
    }
  }
  return Next::kEnd;
}

void Runner::StartConversation(absl::Duration intended) {
  auto conversation = std::make_shared<Conversation>(workload_->Start(options_.first_conversation + num_started_++));
  WorkItem item = *conversation->Next({});
  {
    MutexLock lock(&mutex_);
    ++num_talking_;
  }
  Send(std::move(conversation), std::move(item), open_loop() ? std::optional(intended) : std::nullopt);
}

void Runner::ContinueConversation(Answered answered) {
  std::optional<WorkItem> item;
  if (answered.at < options_.duration) item = answered.conversation->Next(answered.token_ids);
  if (!item) return EndConversation();
  Send(std::move(answered.conversation), *std::move(item), answered.at);
}

void Runner::EndConversation() {
  MutexLock lock(&mutex_);
  --num_talking_;
  changed_.SignalAll();
}

void Runner::Send(std::shared_ptr<Conversation> conversation, WorkItem item, std::optional<absl::Duration> intended) {
  int64_t index = 0;
  {
    MutexLock lock(&mutex_);
    index = num_sent_;
  }
  StreamCall::Options options = {.run_start = start_,
                                 .index = index,
                                 .intended = intended,
                                 .timeout = options_.timeout,
                                 .output_tokens = &output_tokens_,
                                 .verify = options_.verify,
                                 .keep_tokens = workload_->has_turns(),
                                 .reference = nullptr};
  if (!options_.references.empty()) options.reference = &options_.references.at(item.reference);
  const auto call = std::make_shared<StreamCall>(options, std::move(item), [this, conversation](RequestRecord record) {
    Finish(conversation, std::move(record));
  });
  {
    MutexLock lock(&mutex_);
    if (cancelled_) return;
    ++num_sent_;
    in_flight_.emplace(index, call);
  }
  // Outside the lock: gRPC may call back before it returns.
  call->Start(stub_);
}

void Runner::Finish(std::shared_ptr<Conversation> conversation, RequestRecord record) {
  MutexLock lock(&mutex_);
  const auto found = in_flight_.find(record.index);
  finished_.push_back(std::move(found->second));
  in_flight_.erase(found);
  record.cancelled = cancelled_ && record.code == grpc::StatusCode::CANCELLED;
  if (!record.ok() && !record.cancelled) ++num_failed_;
  if (record.ok() && workload_->has_turns()) {
    answered_.push_back({std::move(conversation), std::move(record.token_ids), record.end});
  } else {
    --num_talking_;
  }
  records_.push_back(std::move(record));
  changed_.SignalAll();
}

void Runner::DestroyFinished() {
  std::vector<std::shared_ptr<StreamCall>> finished;  // dropped after the lock
  MutexLock lock(&mutex_);
  finished.swap(finished_);
}

Runner::Result Runner::Run() {
  start_ = StreamCall::Clock::now();
  Answered answered;
  absl::Duration intended;
  for (Next next = Await(&answered, &intended); next != Next::kEnd; next = Await(&answered, &intended)) {
    if (next == Next::kConversation) {
      StartConversation(intended);
    } else {
      ContinueConversation(std::move(answered));
    }
    DestroyFinished();
  }
  {
    MutexLock lock(&mutex_);
    while (!in_flight_.empty()) changed_.Wait(&mutex_);
  }
  DestroyFinished();

  Result result;
  MutexLock lock(&mutex_);
  result.records = std::move(records_);
  result.cancelled = cancelled_;
  for (const RequestRecord& record : result.records) result.elapsed = std::max(result.elapsed, record.end);
  return result;
}

void Runner::Cancel() {
  std::vector<std::shared_ptr<StreamCall>> calls;
  {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    for (const auto& [index, call] : in_flight_) calls.push_back(call);
    changed_.SignalAll();
  }
  for (const auto& call : calls) call->Cancel();
}

Runner::Progress Runner::GetProgress() const {
  MutexLock lock(&mutex_);
  const int64_t in_flight = static_cast<int64_t>(in_flight_.size());
  return {.sent = num_sent_,
          .done = num_sent_ - in_flight,
          .failed = num_failed_,
          .output_tokens = output_tokens_.load(std::memory_order_relaxed)};
}

}  // namespace berth::cli
