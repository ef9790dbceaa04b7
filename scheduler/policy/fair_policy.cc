#include "scheduler/policy/fair_policy.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "scheduler/output/output_group.h"

namespace berth {
namespace {

// A step that took longer than this was stopped from outside; who held the cache is not to pay for that.
constexpr absl::Duration kLongestStep = absl::Seconds(10);
// Steps for which an admission that lacked room is not expected to find any, unless a sequence stops.
constexpr int64_t kRetrySteps = 16;

// Tokens of its lease that another sequence computed and may hold too.
int64_t SharedTokens(const Sequence& sequence) {
  const bool forked = sequence.group != nullptr && sequence.output > 0;
  return std::max(sequence.hit.num_tokens, forked ? sequence.prompt_length - 1 : 0);
}

int64_t OwnBytes(const Sequence& sequence) {
  const int64_t tokens = sequence.num_computed();
  if (tokens == 0) return 0;
  const int64_t own_tokens = std::max<int64_t>(0, tokens - SharedTokens(sequence));
  return static_cast<int64_t>(static_cast<double>(sequence.lease.held_bytes()) * static_cast<double>(own_tokens) /
                              static_cast<double>(tokens));
}

bool Waits(const Sequence& sequence) { return sequence.turn.place != ~size_t{0}; }

}  // namespace

FairPolicy::FairPolicy(Options options) : options_(std::move(options)), accounts_(options_.max_idle_tenants) {
  accounts_.SetWeights(options_.weights);
}

void FairPolicy::SetWeights(TenantWeights weights) {
  MutexLock lock(&mutex_);
  new_weights_ = std::move(weights);
  has_new_weights_.store(true, std::memory_order_release);
}

bool FairPolicy::IsOverdueTurn() const {
  return admissions_by_share_ + 1 >= kOverdueTurn &&
         now_ - accounts_.waiting_longest()->waits_since > options_.max_wait;
}

const Sequence* FairPolicy::PickToAdmit(const WaitingSequences& /*waiting*/) {
  pick_failed_ = true;  // until OnAdmit
  picked_overdue_ = IsOverdueTurn();
  return NextTenant()->waiting.top();
}

// By the cache that a tenant holds, not by its counter: that is what is short, and what a preemption gives back. So a
// tenant within its share of the cache is safe, however much it has computed.
size_t FairPolicy::PickToPreempt(RunningSequences candidates, const Sequence& beneficiary) {
  const auto rank = [](const Sequence& sequence) {
    const TenantAccount& account = *sequence.turn.account;
    return std::tuple(account.excess(), account.counter, sequence.turn.due, sequence.turn.number);
  };
  size_t victim = 0;
  for (size_t i = 1; i < candidates.size(); ++i) {
    if (rank(*candidates[i]) >= rank(*candidates[victim])) victim = i;
  }
  const bool is_first = beneficiary.request.key == first_running_;
  const bool spares = !accounts_.FillsItsShare(*candidates[victim]->turn.account);
  return spares && !is_first && accounts_.FillsItsShare(*beneficiary.turn.account) ? kItself : victim;
}

int64_t FairPolicy::TokenLimit(const Sequence& sequence, TokenUse use, int64_t left) {
  if (use == TokenUse::kDrafts) return left - std::min(left, reserved_);
  if (use != TokenUse::kPrefill || !divides_prefill_) return left;
  TenantAccount* const account = sequence.turn.account;
  const int64_t limit = std::min(left, account->prefill_left);
  account->prefill_left -= std::min(limit, PrefillTokens(sequence));
  return limit;
}

int64_t FairPolicy::PrefillTokens(const Sequence& sequence) const {
  if (sequence.parked || sequence.decoding()) return 0;
  const int64_t set_aside = sequence.catching_up() ? 1 : 0;
  return std::min(sequence.num_remaining(), chunk_tokens_) - set_aside;
}

void FairPolicy::OnArrival(const Sequence& sequence) {
  now_ = std::max(now_, sequence.request.arrival);
  sequence.turn = {.account = accounts_.Open(sequence.request.cache_salt),
                   .due = now_ - sequence.request.priority * options_.ageing,
                   .number = ++last_number_};
  accounts_.AddWaiting(sequence, now_);
}

void FairPolicy::TakeNewWeights() {
  if (!has_new_weights_.load(std::memory_order_acquire)) return;
  MutexLock lock(&mutex_);
  accounts_.SetWeights(std::move(new_weights_));
  has_new_weights_.store(false, std::memory_order_release);
}

void FairPolicy::OnPlan(const StepBudget& step, RunningSequences running) {
  now_ = std::max(now_, step.now);
  TakeNewWeights();
  board_.Publish(now_, /*at_once=*/false, &accounts_);
  first_running_ = running.empty() ? 0 : running.front()->request.key;
  steps_until_retry_ = std::exchange(pick_failed_, false) ? kRetrySteps : std::max<int64_t>(0, steps_until_retry_ - 1);
  chunk_tokens_ = step.chunk_tokens;
  divides_prefill_ = false;
  reserved_ = 0;
  if (accounts_.num_busy() < 2) return;
  claims_.clear();
  int64_t budget = step.num_tokens;
  for (const std::unique_ptr<Sequence>& sequence : running) {
    const int64_t tokens = PrefillTokens(*sequence);
    if (SameRequest(*sequence, *running.front())) {
      budget -= tokens;  // it gets what it wants in any case
    } else {
      Claim(*sequence, tokens);
    }
  }
  const TenantAccount* next = nullptr;
  int64_t for_admission = 0;
  if (accounts_.any_waiting() && step.free_sequences > 0 && steps_until_retry_ == 0) {
    next = NextTenant();
    const Sequence& first = *next->waiting.top();
    // An encoder's input is not cut into chunks.
    for_admission = std::max(std::min(first.num_to_prefill(), step.chunk_tokens), first.num_encoder_tokens() + 1);
    Claim(first, for_admission);
  }
  DividePrefill(std::max<int64_t>(0, budget), next, for_admission);
}

void FairPolicy::Claim(const Sequence& sequence, int64_t tokens) {
  TenantAccount* const account = sequence.turn.account;
  if (tokens == 0) return;
  if (account->prefill_wanted == 0) claims_.push_back(account);
  account->prefill_wanted += tokens;
}

void FairPolicy::DividePrefill(int64_t budget, const TenantAccount* next, int64_t for_admission) {
  std::sort(claims_.begin(), claims_.end(),
            [](const TenantAccount* a, const TenantAccount* b) { return a->counter < b->counter; });
  for (TenantAccount* account : claims_) {
    const int64_t wanted = std::exchange(account->prefill_wanted, 0);
    int64_t given = std::min(wanted, budget);
    if (given < wanted) divides_prefill_ = true;
    budget -= given;
    if (account == next) {  // its running sequences come before its next admission
      reserved_ = std::max<int64_t>(0, given - (wanted - for_admission));
      given -= reserved_;
    }
    account->prefill_left = given;
  }
}

void FairPolicy::OnAdmit(const Sequence& sequence) {
  TenantAccount* const account = sequence.turn.account;
  // Called for each output of a request; the first call is for the admission.
  if (std::exchange(pick_failed_, false)) admissions_by_share_ = picked_overdue_ ? 0 : admissions_by_share_ + 1;
  if (Waits(sequence)) {
    accounts_.RemoveWaiting(sequence, now_, /*admitted=*/true);
  } else {
    sequence.turn.charged = 0;  // it copied that of the request's first output
  }
  accounts_.AddRunning(account);
  // The tokens of this step are already in the lease.
  const int64_t known = std::max(sequence.num_computed() - sequence.step_tokens, sequence.num_counted);
  sequence.turn.prepaid_tokens = std::max<int64_t>(0, sequence.num_tokens() - known);
  if (!sequence.encoded && sequence.num_counted == 0) sequence.turn.prepaid_tokens += sequence.num_encoder_tokens();
  sequence.turn.held_bytes = 0;  // until the step has ended
  Charge(sequence, static_cast<double>(sequence.turn.prepaid_tokens) * options_.prefill_token_cost);
}

void FairPolicy::Charge(const Sequence& sequence, double cost) {
  sequence.turn.charged += cost;
  accounts_.Charge(sequence.turn.account, cost);
}

bool FairPolicy::GetQueues(std::vector<TenantQueue>* queues) const {
  queues->clear();
  accounts_.ForEachWaiting([queues](const TenantAccount& account) {
    queues->push_back({.tenant = account.id,
                       .weight = account.weight,
                       .counter = account.counter,
                       .sequence_cost = account.sequence_cost,
                       .num_sequences = static_cast<int64_t>(account.waiting.size()),
                       .num_tokens = account.waiting_tokens});
  });
  return true;
}

void FairPolicy::StopRunning(const Sequence& sequence) {
  FairTurn& turn = sequence.turn;
  accounts_.RemoveRunning(turn.account);
  accounts_.SetHeld(sequence, 0);
  const int64_t unused = std::exchange(turn.prepaid_tokens, 0);
  Charge(sequence, -static_cast<double>(unused) * options_.prefill_token_cost);
  pick_failed_ = false;
  steps_until_retry_ = 0;
}

void FairPolicy::OnPreempt(const Sequence& sequence) {
  StopRunning(sequence);
  accounts_.AddWaiting(sequence, now_);
}

void FairPolicy::OnPause(const Sequence& sequence) {
  accounts_.RemoveWaiting(sequence, now_, /*admitted=*/false);
  ++sequence.turn.account->num_paused;
}

void FairPolicy::OnUnpause(const Sequence& sequence) {
  --sequence.turn.account->num_paused;
  accounts_.AddWaiting(sequence, now_);
}

void FairPolicy::OnComputed(const Sequence& sequence, const ComputedTokens& tokens) {
  const int64_t prefill = tokens.prefill - tokens.again;
  const int64_t paid = std::min(prefill, sequence.turn.prepaid_tokens);
  sequence.turn.prepaid_tokens -= paid;
  const double cost = static_cast<double>(prefill - paid) * options_.prefill_token_cost +
                      static_cast<double>(tokens.decode) * options_.decode_token_cost;
  if (cost > 0) Charge(sequence, cost);
}

void FairPolicy::OnStep(RunningSequences running, absl::Duration time) {
  const absl::Duration paid_time = std::clamp(time, absl::ZeroDuration(), kLongestStep);
  const double byte_cost = options_.cache_gib_second_cost / (1 << 30) * absl::ToDoubleSeconds(paid_time);
  for (const std::unique_ptr<Sequence>& sequence : running) {
    const int64_t bytes = OwnBytes(*sequence);
    accounts_.SetHeld(*sequence, bytes);
    if (byte_cost > 0) Charge(*sequence, static_cast<double>(bytes) * byte_cost);
  }
}

void FairPolicy::OnEnd(const Sequence& sequence) {
  if (Waits(sequence)) {
    accounts_.RemoveWaiting(sequence, now_, /*admitted=*/false);
  } else {
    StopRunning(sequence);
  }
  if (sequence.ever_admitted()) accounts_.AddCost(sequence.turn.account, sequence.turn.charged);
  accounts_.Close(sequence.turn.account);
  if (accounts_.num_busy() == 0) board_.Publish(now_, /*at_once=*/true, &accounts_);  // no step follows
}

}  // namespace berth
