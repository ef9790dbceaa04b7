#include "server/delivery/unread_answers.h"

#include <utility>

namespace berth {

void UnreadAnswers::Add(const void* call, int64_t bytes, std::function<void()> cancel) {
  {
    MutexLock lock(&mutex_);
    const auto place = oldest_first_.insert(oldest_first_.end(), call);
    answers_[call] = {.bytes = bytes, .cancel = std::move(cancel), .place = place};
    bytes_ += bytes;
    undelivered_->Add(bytes);
  }
  while (const std::function<void()> cancel_oldest = BeginCancel()) {
    cancel_oldest();
    EndCancel();
  }
}

void UnreadAnswers::Remove(const void* call) {
  MutexLock lock(&mutex_);
  // Where this thread itself cancels, `cancel` has called this.
  while (cancelling_ == call && canceller_ != std::this_thread::get_id()) changed_.Wait(&mutex_);
  const auto found = answers_.find(call);
  if (found == answers_.end()) return;
  const Answer& answer = found->second;
  undelivered_->Add(-answer.bytes);
  if (!answer.is_cancelled) {
    bytes_ -= answer.bytes;
    oldest_first_.erase(answer.place);
  }
  answers_.erase(found);
}

std::function<void()> UnreadAnswers::BeginCancel() {
  MutexLock lock(&mutex_);
  // One thread cancels at a time, until all fit.
  if (cancelling_ != nullptr || bytes_ <= limit_bytes_ || oldest_first_.size() < 2) return nullptr;
  cancelling_ = oldest_first_.front();
  canceller_ = std::this_thread::get_id();
  oldest_first_.pop_front();
  Answer& answer = answers_.at(cancelling_);
  answer.is_cancelled = true;
  bytes_ -= answer.bytes;
  undelivered_->CountEnded();
  return std::move(answer.cancel);
}

void UnreadAnswers::EndCancel() {
  MutexLock lock(&mutex_);
  cancelling_ = nullptr;
  changed_.SignalAll();
}

}  // namespace berth
