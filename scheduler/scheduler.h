// Decides what each step computes: policy only. Plan() before a step, Commit() after it; nothing calls back.
//
// Policy: first come, first served. Decode rows first, one token each; then prefill chunks within the token budget,
// oldest first; then new sequences while a lease for their whole prompt can be had. When a running sequence cannot
// grow, the youngest running one gives its lease back and waits to be recomputed (its tokens are kept, nothing is
// lost); the oldest always goes on, so nothing deadlocks. Engine thread only.
#ifndef BERTH_SCHEDULER_SCHEDULER_H_
#define BERTH_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache/cache.h"
#include "models/step.h"
#include "scheduler/request.h"

namespace berth {

class Scheduler {
 public:
  struct Options {
    int64_t max_running = 64;            // sequences that hold a lease at once
    int64_t max_step_tokens = 512;       // token budget of one step
    int64_t prefill_chunk_tokens = 256;  // the most tokens of one prompt in one step
    int64_t max_sequence_tokens = 0;     // prompt + output of one sequence
  };

 private:
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_SCHEDULER_H_
