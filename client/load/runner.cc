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

void Runner::WaitUntil(absl::Duration time) {
  while (!cancelled_ && Now() < time) changed_.WaitFor(&mutex_, time - Now());
}

std::optional<absl::Duration> Runner::NextStart() {
  MutexLock lock(&mutex_);
  if (options_.num_requests > 0 && num_sent_ >= options_.num_requests) return std::nullopt;
  absl::Duration intended;
  if (options_.rate > 0) {
    intended = arrivals_.Next();
    if (intended < options_.duration) WaitUntil(intended);
  } else {
    while (!cancelled_ && static_cast<int64_t>(in_flight_.size()) >= options_.concurrency) changed_.Wait(&mutex_);
    intended = Now();
  }
  if (cancelled_ || intended >= options_.duration) return std::nullopt;
  return intended;
}

void Runner::Send(int64_t index, absl::Duration intended) {
  WorkItem item = workload_->Make(index);
  StreamCall::Options options = {.run_start = start_,
                                 .index = index,
                                 .intended = std::nullopt,
                                 .timeout = options_.timeout,
                                 .output_tokens = &output_tokens_,
                                 .verify = options_.verify,
                                 .reference = nullptr};
  if (options_.rate > 0) options.intended = intended;
  if (!options_.references.empty()) options.reference = &options_.references.at(item.reference);
  const auto call = std::make_shared<StreamCall>(options, std::move(item),
                                                 [this](RequestRecord record) { Finish(std::move(record)); });
  {
    MutexLock lock(&mutex_);
    if (cancelled_) return;
    ++num_sent_;
    in_flight_.emplace(index, call);
  }
  // Outside the lock: gRPC may call back before it returns.
  call->Start(stub_);
}

void Runner::Finish(RequestRecord record) {
  MutexLock lock(&mutex_);
  const auto found = in_flight_.find(record.index);
  finished_.push_back(std::move(found->second));
  in_flight_.erase(found);
  record.cancelled = cancelled_ && record.code == grpc::StatusCode::CANCELLED;
  if (!record.ok() && !record.cancelled) ++num_failed_;
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
  for (int64_t index = 0; const auto intended = NextStart(); ++index) {
    Send(index, *intended);
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
