// A thread that runs the tasks that it is given, one after the other. Thread-safe. Make it its owner's last member:
// then it starts after all others are built, and is destroyed before them. Its destructor waits for all tasks.
#ifndef BERTH_BASE_WORK_QUEUE_H_
#define BERTH_BASE_WORK_QUEUE_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace berth {

class WorkQueue {
 public:
  WorkQueue() : thread_([this] { Loop(); }) {}
  ~WorkQueue() ABSL_LOCKS_EXCLUDED(mutex_);
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void Add(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before all tasks that wait.
  void AddFirst(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  CondVar filled_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace berth

#endif  // BERTH_BASE_WORK_QUEUE_H_
