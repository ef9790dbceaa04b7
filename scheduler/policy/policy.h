// Whom to admit next, whom to preempt, and who gets how much of a step: the choices that the scheduler leaves open.
// Engine thread only.
//
// The scheduler does the rest, and keeps these rules whatever a policy says:
//   - No request overtakes: when the picked one cannot be admitted, the step admits none.
//   - Running requests get their tokens in order of admission. A request is only preempted for one that runs and was
//     admitted before it, or instead of one that was admitted after it.
//   - The first running request gets all the tokens it can use, and any other can be preempted for it. So it grows in
//     every step and ends some day, and then the next is first: nothing deadlocks.
//   - The outputs of a request are admitted and preempted together.
//   - A plan has at most max_step_tokens tokens.
//
// To add a policy:
//   1. Derive it from SchedulingPolicy, in files of its own. A Sequence says whose it is (request.cache_salt is the
//      tenant), when it arrived, how many tokens it has and still has to compute, and through its lease what it holds.
//   2. Keep accounts in OnComputed (work done) and OnStep (memory held over time); open and close them in OnArrival and
//      OnEnd. These run on the step's path: do not allocate per step, lock or log.
//   3. Test it on its own as tests/scheduler/policy/policy_test.cc does, with sequences that no scheduler owns. That
//      any choice is safe is shown by the scheduler's property test, and need not be shown again.
//   4. Let server/server.cc pass it as SchedulerOptions::policy.
// FairPolicy (scheduler/policy/fair_policy.h) is an example, and what the server uses.
#ifndef BERTH_SCHEDULER_POLICY_POLICY_H_
#define BERTH_SCHEDULER_POLICY_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/load/wait_estimate.h"
#include "scheduler/sequence.h"

namespace berth {

using RunningSequences = absl::Span<const std::unique_ptr<Sequence>>;
using WaitingSequences = std::deque<std::unique_ptr<Sequence>>;

// What a sequence spends tokens of a step on, in the order in which the step gives them out.
enum class TokenUse : uint8_t {
  kDecode,     // the one token of a sequence past its prompt; it is set aside before others get any
  kPrefill,    // a chunk of a running sequence's prompt, or of what a preemption lost
  kDrafts,     // drafts to check
  kAdmission,  // the first chunk of a waiting sequence, its encoder's input included
};

// What a step computed of a sequence, in tokens. Work that a preemption lost counts again.
struct ComputedTokens {
  int64_t prefill = 0;  // the encoder's input and forced tokens included
  int64_t decode = 0;   // drafts included, right or wrong
  int64_t again = 0;    // those of `prefill` that an earlier step had computed too
};

// What a step that is being planned has.
struct StepBudget {
  absl::Time now;
  int64_t num_tokens = 0;      // left for prefill, drafts and admission, once each decoded token is set aside
  int64_t chunk_tokens = 0;    // the most tokens that one sequence may prefill
  int64_t free_sequences = 0;  // how many more may run
};

class SchedulingPolicy {
 public:
  static constexpr size_t kNobody = ~size_t{0};
  static constexpr size_t kItself = kNobody - 1;

  virtual ~SchedulingPolicy() = default;

  // Picks the sequence to admit next, one of `waiting`, which is not empty. There, preempted sequences and those that
  // were paused stand before new ones, and new ones in order of arrival. A sequence stands for its whole request.
  // Called again after each admission.
  virtual const Sequence* PickToAdmit(const WaitingSequences& waiting) = 0;

  // Picks the sequence to preempt because the cache has no room for `beneficiary` to grow. Returns one of these:
  //   - an index into `candidates`, which are in order of admission and not empty;
  //   - kNobody: preempts none, and the beneficiary skips this step;
  //   - kItself: preempts the beneficiary's request, so that later ones can grow.
  // For the first running request, which is never held up, the last two mean the last candidate.
  virtual size_t PickToPreempt(RunningSequences candidates, const Sequence& beneficiary) = 0;

  // Returns how many of the step's `left` tokens `sequence` may spend on `use`. Tokens that it spends are gone for the
  // next sequence. 0 leaves it out of this step; more than `left` means `left`.
  virtual int64_t TokenLimit(const Sequence& sequence, TokenUse use, int64_t left) = 0;

  // Writes what waits of each tenant to `queues`, for predictions of waits. False: requests are admitted in the order
  // of arrival, and nothing is written.
  virtual bool GetQueues(std::vector<TenantQueue>* /*queues*/) const { return false; }

  // A request arrived: its first sequence is waiting, for the first time.
  virtual void OnArrival(const Sequence& /*sequence*/) {}
  // A step is being planned. May be called again for the same step.
  virtual void OnPlan(const StepBudget& /*step*/, RunningSequences /*running*/) {}
  // The sequence begins to run, in the step being planned: it waited, or is a new output of a request that did.
  virtual void OnAdmit(const Sequence& /*sequence*/) {}
  // The sequence ran and waits again.
  virtual void OnPreempt(const Sequence& /*sequence*/) {}
  // The waiting sequence is paused: it waits no more, until OnUnpause. Before OnEnd, that is called too.
  virtual void OnPause(const Sequence& /*sequence*/) {}
  virtual void OnUnpause(const Sequence& /*sequence*/) {}
  // A step computed something of the sequence. Not called for a step that failed.
  virtual void OnComputed(const Sequence& /*sequence*/, const ComputedTokens& /*tokens*/) {}
  // A step took `time`, in which `running` held their leases.
  virtual void OnStep(RunningSequences /*running*/, absl::Duration /*time*/) {}
  // The sequence is about to be destroyed. A request of several outputs ends with its last sequence.
  virtual void OnEnd(const Sequence& /*sequence*/) {}
};

// First come, first served. Decoding sequences go first, then prefill chunks, oldest first, then new sequences in order
// of arrival. The youngest is preempted. Has no state.
//
// Invariant, while the scheduler runs it and until a request is paused: running sequences are in order of arrival and
// of their outputs, and so are waiting ones. Every running one arrived before every waiting one.
class FcfsPolicy : public SchedulingPolicy {
 public:
  const Sequence* PickToAdmit(const WaitingSequences& waiting) override { return waiting.front().get(); }
  size_t PickToPreempt(RunningSequences candidates, const Sequence& /*beneficiary*/) override {
    return candidates.size() - 1;
  }
  int64_t TokenLimit(const Sequence& /*sequence*/, TokenUse /*use*/, int64_t left) override { return left; }
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_POLICY_POLICY_H_
