#include "server/request/turn_pool.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/signal_stack.h"

namespace berth {
namespace {

bool Never() { return false; }

}  // namespace

TurnPool::TurnPool(Options options)
    : options_(std::move(options)),
      shares_(
          {.threads = options_.threads, .waiting = options_.max_waiting, .waiting_bytes = options_.max_waiting_bytes}) {
  for (int64_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Loop(); });
}

TurnPool::~TurnPool() {
  Stop();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status TurnPool::Submit(Job job) {
  {
    MutexLock lock(&mutex_);
    if (!stopped_) {
      if (const auto excess = shares_.ExcessOf(job.client, job.bytes)) {
        ++refused_;
        return TooMuchWaits(*excess, job.bytes);
      }
      shares_.Add(job.client, {.waiting = 1, .waiting_bytes = job.bytes});
      waiting_.Push(std::move(job));
      changed_.Signal();
      return absl::OkStatus();
    }
  }
  job.work(absl::UnavailableError("the server is shutting down"), Never);
  return absl::OkStatus();
}

absl::Status TurnPool::TooMuchWaits(const ClientShares::Excess& excess, int64_t bytes) const {
  const ClientShares::Share& all = shares_.all();
  const std::string with_bytes = bytes > 0 ? absl::StrCat(" with ", all.waiting_bytes, " bytes") : "";
  return RefusedError(
      {.reason = options_.refusal, .limit = absl::StrCat(excess.limit), .value = absl::StrCat(excess.value)},
      absl::StrCat(all.waiting, " ", options_.what, with_bytes, " wait already; retry later"));
}

void TurnPool::Cancel(RequestKey key) {
  std::optional<Job> job;
  {
    MutexLock lock(&mutex_);
    if (const auto running = running_.find(key); running != running_.end()) running->second.request_stop();
    job = waiting_.Remove(key);
    if (job.has_value()) Leave(*job);
  }
  if (job.has_value()) job->work(absl::CancelledError("cancelled by the client"), Never);
}

void TurnPool::Stop() {
  std::vector<Job> left;
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    for (auto& [key, stop] : running_) stop.request_stop();
    while (std::optional<Job> job = waiting_.Pop([](const std::string&) { return true; })) {
      Leave(*job);
      left.push_back(*std::move(job));
    }
    changed_.SignalAll();
  }
  for (const Job& job : left) job.work(absl::UnavailableError("the server is shutting down"), Never);
}

TurnPoolLoad TurnPool::load() const {
  MutexLock lock(&mutex_);
  const ClientShares::Share& all = shares_.all();
  return {.waiting = all.waiting,
          .waiting_bytes = all.waiting_bytes,
          .running = all.running,
          .done = done_,
          .refused = refused_};
}

std::optional<TurnPool::Job> TurnPool::Next() {
  return waiting_.Pop([&](const std::string& client)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return shares_.MayRun(client); });
}

void TurnPool::Leave(const Job& job) { shares_.Add(job.client, {.waiting = -1, .waiting_bytes = -job.bytes}); }

void TurnPool::Loop() {
  const SignalStack signal_stack;
  while (true) {
    std::optional<Job> job;
    std::stop_token stop;
    {
      MutexLock lock(&mutex_);
      while (!stopped_ && !(job = Next()).has_value()) changed_.Wait(&mutex_);
      if (!job.has_value()) return;
      shares_.Add(job->client, {.running = 1});
      Leave(*job);
      stop = running_.emplace(job->key, std::stop_source()).first->second.get_token();
    }
    const auto must_stop = [this, &job, &stop] { return stop.stop_requested() || options_.now() >= job->deadline; };
    const bool late = options_.now() >= job->deadline;
    job->work(late ? absl::DeadlineExceededError("the deadline passed before the request's turn") : absl::OkStatus(),
              must_stop);
    {
      MutexLock lock(&mutex_);
      running_.erase(job->key);
      shares_.Add(job->client, {.running = -1});
      ++done_;
      changed_.SignalAll();  // the client may have another thread
    }
  }
}

}  // namespace berth
