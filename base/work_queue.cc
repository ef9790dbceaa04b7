#include "base/work_queue.h"

#include <utility>

#include "base/signal_stack.h"

namespace berth {

WorkQueue::~WorkQueue() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    filled_.Signal();
  }
  thread_.join();
}

void WorkQueue::Add(std::function<void()> work) {
  MutexLock lock(&mutex_);
  queue_.push_back(std::move(work));
  filled_.Signal();
}

void WorkQueue::AddFirst(std::function<void()> work) {
  MutexLock lock(&mutex_);
  queue_.push_front(std::move(work));
  filled_.Signal();
}

void WorkQueue::Loop() {
  const SignalStack signal_stack;
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !closed_) filled_.Wait(&mutex_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace berth
