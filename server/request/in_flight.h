// Counts what is under way, such as threads within an object's work, so that another thread can wait for its end.
// Thread-safe.
#ifndef BERTH_SERVER_REQUEST_IN_FLIGHT_H_
#define BERTH_SERVER_REQUEST_IN_FLIGHT_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/steady_clock.h"
#include "server/request/undo.h"

namespace berth {

class InFlight {
 public:
  // One more, until what is returned is destroyed.
  Undo Enter() ABSL_LOCKS_EXCLUDED(mutex_) {
    Add(1);
    return Undo([this] { Add(-1); });
  }

  void WaitUntilNone() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    while (count_ > 0) none_.Wait(&mutex_);
  }
  // Returns whether there are none.
  bool WaitUntilNone(absl::Time until) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    while (count_ > 0) {
      const absl::Duration left = until - SteadyNow();
      if (left <= absl::ZeroDuration()) return false;
      none_.WaitFor(&mutex_, left);
    }
    return true;
  }

 private:
  void Add(int64_t change) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    count_ += change;
    if (count_ == 0) none_.SignalAll();
  }

  Mutex mutex_;
  CondVar none_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_IN_FLIGHT_H_
