// Decides whether copying a cache takes less time than computing its tokens again. Uses running averages of the copies
// and prefills that were measured. Engine thread only.
//
// All of a sequence's tokens count as to be computed again. The prefix index may still hold some of them by then, but
// how many is unknown.
#ifndef BERTH_SCHEDULER_TIERS_COPY_COST_H_
#define BERTH_SCHEDULER_TIERS_COPY_COST_H_

#include <cstdint>

#include "absl/time/time.h"

namespace berth {

// An amount per time. The latest spans count most, and long spans more than short ones.
class RunningRate {
 public:
  void Add(int64_t amount, absl::Duration time);
  // How long `amount` takes; 0 before the first Add.
  absl::Duration TimeFor(int64_t amount) const;

 private:
  double amount_ = 0;
  double seconds_ = 0;
};

class CopyCost {
 public:
  // `always_copy`, for tests: copying is worth it whatever was measured, so the machine's speed changes nothing.
  explicit CopyCost(bool always_copy = false) : always_copy_(always_copy) {}

  // `size_bytes` were copied in `time`.
  void OnCopy(int64_t size_bytes, absl::Duration time) { copies_.Add(size_bytes, time); }
  // A step that mostly prefilled computed `num_tokens` in `time`.
  void OnPrefill(int64_t num_tokens, absl::Duration time) { prefills_.Add(num_tokens, time); }

  // Whether copying `size_bytes`, with `extra` time spent before, takes no longer than computing `num_tokens`. Until a
  // copy was measured, copies count as free, so one is tried.
  bool IsWorthCopying(int64_t size_bytes, int64_t num_tokens, absl::Duration extra = absl::ZeroDuration()) const {
    return num_tokens > 0 && (always_copy_ || copies_.TimeFor(size_bytes) + extra <= prefills_.TimeFor(num_tokens));
  }

 private:
  const bool always_copy_;
  RunningRate copies_;    // bytes
  RunningRate prefills_;  // tokens
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_COPY_COST_H_
