// The output of a call that begins on another thread than gRPC's, and may be cancelled before it has one. Thread-safe.
#ifndef BERTH_SERVER_API_CALL_OUTPUT_H_
#define BERTH_SERVER_API_CALL_OUTPUT_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "scheduler/mutex.h"
#include "server/api/request_output.h"

namespace berth {

class CallOutput {
 public:
  // Keeps the output, and cancels it if the call was cancelled before.
  void Set(std::shared_ptr<RequestOutput> output) ABSL_LOCKS_EXCLUDED(mutex_);
  // For a request that was refused.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);
  // Null: the call has none yet, or no more.
  std::shared_ptr<RequestOutput> get() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The call was cancelled: cancels its output, now or as soon as it has one.
  void Cancel(EndCause cause) ABSL_LOCKS_EXCLUDED(mutex_);
  // kNone: the call was not cancelled.
  EndCause cause() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  std::shared_ptr<RequestOutput> output_ ABSL_GUARDED_BY(mutex_);
  EndCause cause_ ABSL_GUARDED_BY(mutex_) = EndCause::kNone;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_CALL_OUTPUT_H_
