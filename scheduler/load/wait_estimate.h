// Predicts when a new request would have its first step and its first token, from what the last steps and sequences
// took. Plain data and functions; WaitEstimator runs on the engine thread.
//
// The wait is the longer of two:
//   - for prefill: the tokens before the request, at the time of a prefilled token each, and the time of a step that
//     only decodes in each step that they need;
//   - for a place: the sequences that must end first, at the time of a sequence divided by the places.
// With fair shares, not all that waits is before the request. Tenants are served so that their counters stay level
// (scheduler/policy/fair_policy.h). So before the request go those that its own tenant has waiting, and of every other
// tenant as many as its counter leaves it until then. A prefilled token counts for what the last prompts had to
// compute: the rest of them was in the prefix cache. The request's own prefill takes the same times, with at most a
// chunk in a step.
//
// The times of steps are those of the middle half of the last 16 measurements. So a step that took far longer than the
// others counts for nothing as soon as there is a second one. An example is a step that reads the weights from the
// disk. Waits for places are sums over many sequences, which may differ much. So the time of a sequence is a mean, in
// which the newest measurement has a weight of 1/8. What was never measured takes no time, so nothing is predicted
// before the first steps.
#ifndef BERTH_SCHEDULER_LOAD_WAIT_ESTIMATE_H_
#define BERTH_SCHEDULER_LOAD_WAIT_ESTIMATE_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace berth {

// What the predictions start from.
struct WaitRates {
  double decode_step_seconds = 0;    // a step that only decodes
  double prefill_token_seconds = 0;  // a prefilled token, beside the step's own time
  double sequence_seconds = 0;       // from a sequence's first step to its end, without pauses
  double cached_ratio = 0;           // part of the prompts that was in the cache
};

// What is before a new request.
struct Backlog {
  int64_t prefill_tokens = 0;  // of running and of waiting sequences
  int64_t num_sequences = 0;   // running and waiting
  int64_t num_places = 1;      // sequences that run at once: max_running, or fewer while the cache is full
};

// What waits of one tenant under fair shares.
struct TenantQueue {
  uint64_t tenant = 0;  // TenantId of its name
  double weight = 1;
  double counter = 0;         // what it was charged, divided by its weight
  double sequence_cost = 0;   // what a sequence of it is charged, on average; 0: not known
  int64_t num_sequences = 0;  // at least 1
  int64_t num_tokens = 0;     // to prefill
};
uint64_t TenantId(const std::string& tenant);
constexpr uint64_t kNewTenant = 0;  // stands for a tenant that has nothing waiting

// What of `all` goes before a request of the tenant, which `queues` have some of. A request of a priority above 0 goes
// before all that waits of its own tenant.
Backlog BacklogBefore(Backlog all, absl::Span<const TenantQueue> queues, uint64_t tenant, int64_t priority);

// What a step may compute.
struct StepLimits {
  int64_t step_tokens = 1;
  int64_t chunk_tokens = 1;  // of one sequence
};

// The time to the first step of a request of `num_sequences` sequences.
absl::Duration PredictWait(const WaitRates& rates, const StepLimits& limits, const Backlog& before,
                           int64_t num_sequences);
// The time from its first step to its first token. `shares`: some of its prompt may be in the cache.
absl::Duration PredictPrefill(const WaitRates& rates, const StepLimits& limits, int64_t num_tokens, bool shares);

class WaitEstimator {
 public:
  // A step computed a token for each of `decode_rows` sequences past their prompts, and `prefill_tokens` others.
  void OnStep(absl::Duration time, int64_t prefill_tokens, int64_t decode_rows);
  // A sequence ended so long after its first step, pauses left out.
  void OnSequenceEnd(absl::Duration time);
  // Takes counts since the start: tokens of prompts that looked for their prefix, and those that they found.
  void OnPrefixes(int64_t queried_tokens, int64_t hit_tokens);

  const WaitRates& rates() const { return rates_; }

 private:
  // The ratio of two sums over the middle half of the last kSize terms, by their own ratios. With two
  // terms, the smaller ratio counts: a wait that is predicted too long costs a request, and one too short does not.
  class MiddleRatio {
   public:
    // REQUIRES: below > 0.
    void Add(double above, double below);
    double value() const;  // 0: no terms

   private:
    static constexpr int64_t kSize = 16;
    struct Term {
      double above = 0;
      double below = 0;
    };
    std::array<Term, kSize> terms_;
    int64_t num_added_ = 0;
  };
  // A ratio of two sums, in which older terms fade.
  struct FadingRatio {
    double above = 0;
    double below = 0;
    void Add(double more_above, double more_below);
    double value() const { return below > 0 ? above / below : 0; }
  };

  WaitRates rates_;
  MiddleRatio decode_;    // seconds, steps
  MiddleRatio prefill_;   // seconds, tokens
  FadingRatio sequence_;  // seconds, sequences
  FadingRatio cached_;    // tokens
  int64_t queried_tokens_ = 0;
  int64_t hit_tokens_ = 0;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_LOAD_WAIT_ESTIMATE_H_
