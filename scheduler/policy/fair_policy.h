// Shares the server among tenants by weight, however much each offers: the virtual token counter of "Fairness in
// Serving Large Language Models" (Sheng et al., 2023). The tenant of a request is its cache_salt.
//
// A tenant pays for the tokens that it prefills and decodes and for the cache that it holds over time. What the prefix
// index holds already costs nothing, nor does work that a preemption lost. The choices:
//   - Admission: the waiting tenant that is furthest behind its share (scheduler/policy/tenant_accounts.h). A
//   sequence's
//     prefill is paid on admission, and what it does not compute in the end is paid back.
//   - Inside a tenant: a request of priority p goes as if it had arrived p times `ageing` earlier. So waiting raises a
//     request over later ones, by one priority in each `ageing`.
//   - Prefill of running sequences: when they and the next admission want more than the step has, the tenants that are
//     furthest behind get theirs first.
//   - Preemption: a sequence of the tenant that holds most of the cache for its weight, the one that is due last. If
//     only tenants within their share of the cache have younger sequences, and the one that wants to grow has all of
//     its own, then its own request is preempted.
// None of this keeps a slot, a token or a byte free for a tenant that asks for none: it is idle shares that others use.
// With a single tenant and equal priorities, each choice is that of FcfsPolicy.
//
// The bound on a wait: a tenant that waits is overdue if none of its requests was admitted for max_wait. Once
// kOverdueTurn - 1 admissions in a row went by share, the next one goes to the tenant that is overdue longest. So with
// n waiting tenants, an overdue one is served after at most n * kOverdueTurn admissions, whatever arrives meanwhile.
// Each overdue turn takes a tenant from before it, and none comes before it: those served or new have waited less.
// Inside its tenant, a request is overtaken only by those that arrive less than `ageing` times the difference of their
// priorities after it. The scheduler always gets to the next admission: the first running request ends some day, and no
// request overtakes the picked one.
//
// Engine thread only, but SetWeights and shares are thread-safe.
#ifndef BERTH_SCHEDULER_POLICY_FAIR_POLICY_H_
#define BERTH_SCHEDULER_POLICY_FAIR_POLICY_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "scheduler/policy/policy.h"
#include "scheduler/policy/tenant_accounts.h"
#include "scheduler/policy/tenant_shares.h"

namespace berth {

class FairPolicy : public SchedulingPolicy {
 public:
  // One admission in this many may go to an overdue tenant.
  static constexpr int64_t kOverdueTurn = 8;

  struct Options {
    TenantWeights weights;
    // Costs. A decoded token costs two prefilled ones, as in the paper. The cache's cost makes an arena that is full
    // about as dear as the tokens that a server of its size computes meanwhile.
    double prefill_token_cost = 1;
    double decode_token_cost = 2;
    double cache_gib_second_cost = 100;
    absl::Duration ageing = absl::Seconds(1);     // waiting that outweighs one priority
    absl::Duration max_wait = absl::Seconds(30);  // without an admission; then a tenant is overdue
    size_t max_idle_tenants = 1000;               // accounts kept of tenants that have no request
  };

  explicit FairPolicy(Options options);

  // Replaces the weights, from the next step on.
  void SetWeights(TenantWeights weights);
  // What the tenants get, at most a second old while there is work.
  TenantShares shares() const { return board_.Get(); }

  const Sequence* PickToAdmit(const WaitingSequences& waiting) override;
  size_t PickToPreempt(RunningSequences candidates, const Sequence& beneficiary) override;
  int64_t TokenLimit(const Sequence& sequence, TokenUse use, int64_t left) override;

  bool GetQueues(std::vector<TenantQueue>* queues) const override;
  void OnArrival(const Sequence& sequence) override;
  void OnPlan(const StepBudget& step, RunningSequences running) override;
  void OnAdmit(const Sequence& sequence) override;
  void OnPreempt(const Sequence& sequence) override;
  void OnPause(const Sequence& sequence) override;
  void OnUnpause(const Sequence& sequence) override;
  void OnComputed(const Sequence& sequence, const ComputedTokens& tokens) override;
  void OnStep(RunningSequences running, absl::Duration time) override;
  void OnEnd(const Sequence& sequence) override;

  const TenantAccounts& accounts() const { return accounts_; }

 private:
  // Whether the next admission goes to the tenant that waits longest, by the bound on waits.
  bool IsOverdueTurn() const;
  TenantAccount* NextTenant() const {
    return IsOverdueTurn() ? accounts_.waiting_longest() : accounts_.furthest_behind();
  }
  void TakeNewWeights();
  // What a running sequence can prefill in the step, beside the token that is set aside for it.
  int64_t PrefillTokens(const Sequence& sequence) const;
  // Adds to what the sequence's tenant wants to prefill in the step.
  void Claim(const Sequence& sequence, int64_t tokens);
  // Divides the step's `budget` among the claims. `for_admission` tokens of that of `next` are for an admission.
  void DividePrefill(int64_t budget, const TenantAccount* next, int64_t for_admission);
  void Charge(const Sequence& sequence, double cost);
  // Takes back what is charged to a running sequence beyond what it got, because it stops.
  void StopRunning(const Sequence& sequence);

  const Options options_;
  TenantAccounts accounts_;
  TenantSharesBoard board_;
  absl::Time now_ = absl::InfinitePast();  // never goes back
  int64_t last_number_ = 0;                // of a request
  int64_t admissions_by_share_ = 0;        // of requests, since the last overdue turn

  // For the step being planned:
  RequestKey first_running_ = 0;        // 0: none
  std::vector<TenantAccount*> claims_;  // tenants that want to prefill
  int64_t chunk_tokens_ = 0;            // the most that one sequence may prefill
  bool divides_prefill_ = false;        // they want more than there is
  int64_t reserved_ = 0;                // tokens that drafts leave to the next admission
  // An admission that lacks room needs no tokens: after a failed one, none are kept for the next few steps.
  bool pick_failed_ = false;
  bool picked_overdue_ = false;
  int64_t steps_until_retry_ = 0;

  Mutex mutex_;
  TenantWeights new_weights_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_new_weights_{false};
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_POLICY_FAIR_POLICY_H_
