// What calls still have to give to their clients after their work is done. It is kept until the call ends. A client
// that reads nothing can put that off for hours, and make more calls meanwhile. So all together have a limit: over it,
// the calls whose answers have waited longest are cancelled. Thread-safe.
//
// It is for calls with one answer, and for streams whose requests have ended. While a request runs, its stream waits
// for its client before it makes more (request_output.h).
#ifndef BERTH_SERVER_DELIVERY_UNREAD_ANSWERS_H_
#define BERTH_SERVER_DELIVERY_UNREAD_ANSWERS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <thread>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "server/delivery/undelivered.h"

namespace berth {

class UnreadAnswers {
 public:
  // The bytes count in `undelivered` too, which must outlive this.
  UnreadAnswers(int64_t limit_bytes, Undelivered* undelivered) : limit_bytes_(limit_bytes), undelivered_(undelivered) {}

  // `call` has made its last answer, and this many bytes are unread. Ends other calls by `cancel`, without a lock held,
  // if too much is unread; `cancel` may call Add and Remove of any call. The newest answer always fits.
  void Add(const void* call, int64_t bytes, std::function<void()> cancel) ABSL_LOCKS_EXCLUDED(mutex_);

  // gRPC is done with the call, whether it was added or not. If another thread is cancelling it, waits for that.
  void Remove(const void* call) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Answer {
    int64_t bytes = 0;
    std::function<void()> cancel;
    bool is_cancelled = false;
    std::list<const void*>::iterator place;  // in oldest_first_, unless it is cancelled
  };

  // Begins to cancel the oldest call, and returns what does it; null: nothing is to be done here.
  std::function<void()> BeginCancel() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndCancel() ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t limit_bytes_;
  Undelivered* const undelivered_;

  Mutex mutex_;
  CondVar changed_;
  std::unordered_map<const void*, Answer> answers_ ABSL_GUARDED_BY(mutex_);
  std::list<const void*> oldest_first_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;                 // of those that are not cancelled
  const void* cancelling_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the call that `canceller_` cancels
  std::thread::id canceller_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth

#endif  // BERTH_SERVER_DELIVERY_UNREAD_ANSWERS_H_
