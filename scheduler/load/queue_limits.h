// Decides at once whether the server's queue takes one more request. Pure functions; thread-safe.
#ifndef BERTH_SCHEDULER_LOAD_QUEUE_LIMITS_H_
#define BERTH_SCHEDULER_LOAD_QUEUE_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/load/wait_estimate.h"

namespace berth {

struct QueueLimits {
  int64_t max_requests = 256;
  int64_t max_tokens = 0;                          // 0: no limit
  absl::Duration max_wait = absl::ZeroDuration();  // predicted; 0: no limit
};

// The queue as a new request finds it.
struct QueueState {
  int64_t num_requests = 0;  // that never ran
  int64_t num_tokens = 0;    // that waiting sequences have to prefill
  Backlog backlog;
  WaitRates rates;
  StepLimits step;
};

// What is known of a request. Before its text is tokenised, it has no tokens.
struct QueueRequest {
  int64_t num_tokens = 0;  // to prefill
  int64_t num_sequences = 1;
  bool shares_prefix = true;
  absl::Duration time_left = absl::InfiniteDuration();  // to its deadline; one that has passed is not looked at
};

// RESOURCE_EXHAUSTED with a Refusal: the queue is at a limit, or the first token would come after the deadline. The
// code of the latter is not DEADLINE_EXCEEDED: nothing was tried, and the same request may succeed elsewhere or later.
// A request that has no other's prefill before it and a free place is never refused for what is predicted.
absl::Status CheckQueue(const QueueLimits& limits, const QueueState& queue, const QueueRequest& request);

}  // namespace berth

#endif  // BERTH_SCHEDULER_LOAD_QUEUE_LIMITS_H_
