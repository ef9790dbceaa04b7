// Decides what each step computes: admission, growth and preemption. Plan() before a step, Commit() or FailStep() after
// it. Nothing calls back, except that the save sink takes what is to be saved. Engine thread only.
//
// A step gives each running sequence that is past its prompt one token to decode. The rest of the token budget goes to
// prefill chunks of running sequences, then to drafts, then to new sequences while leases for all their tokens fit the
// arena. The policy (scheduler/policy/policy.h) decides which sequence is admitted, which is preempted, and how many
// tokens each one gets.
//
// A waiting sequence may have to wait for room, for a prefix that a running one is computing, or for its own cache or
// prefix to be swapped in. When a running sequence cannot grow, others are preempted: they give their leases up and
// wait. Their tokens are kept, so nothing is lost. Their caches are swapped out or computed again later (SwapManager).
// An encoder sees all its tokens at once, so it runs whole in its sequence's first step, and again after a preemption.
//
// Its parts: OutputGroup (requests of several outputs), PrefixSharing (what sequences get from the prefix index),
// SwapManager (the tiers below the arena), OutputCommitter (tokens and ends), Saver (sessions), Suspects (failed
// steps).
//
// A request whose client does not read can be paused. It is preempted, and is not looked at until it is to continue. So
// it holds nothing of the arena but what the prefix index keeps of it, and nothing waits for it.
//
// Why nothing deadlocks: the first running request grows in every step, unless others do. It waits while a copy makes
// room for it, and in a step that the pacer keeps for those that decode. Alone it fits by CheckRequest, since the cache
// can gather whatever is free.
//
// Invariants:
//   - running sequences are in order of admission, and the sequences of one request are neighbours, in all queues;
//   - a plan has at most max_step_tokens tokens. It is empty only when there is no sequence, or when all wait for the
//     disk.
#ifndef BERTH_SCHEDULER_SCHEDULER_H_
#define BERTH_SCHEDULER_SCHEDULER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache/cache.h"
#include "models/step.h"
#include "scheduler/load/scheduler_counts.h"
#include "scheduler/load/wait_estimate.h"
#include "scheduler/output/mask_workers.h"
#include "scheduler/output/output_committer.h"
#include "scheduler/policy/policy.h"
#include "scheduler/policy/step_pacer.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/sequence.h"
#include "scheduler/suspects.h"
#include "scheduler/tiers/prefix_sharing.h"
#include "scheduler/tiers/saver.h"
#include "scheduler/tiers/swap_manager.h"

namespace berth {

class Scheduler {
 public:
  using Options = SchedulerOptions;
  using Counts = SchedulerCounts;

  // `cache` must outlive the scheduler and have no other user. INVALID_ARGUMENT names the option that makes no sense.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(Cache* cache, Options options);

  // INVALID_ARGUMENT when the request's outputs are more than may run at once, or do not fit the arena together.
  // Thread-safe. REQUIRES: ValidateRequest accepts the request.
  absl::Status CheckRequest(const Request& request) const;

  // REQUIRES: ValidateRequest and CheckRequest accept the request, and no sequence here has its key.
  void Add(Request request);

  // Has the request saved soon. Does nothing for an unknown key, or for a request that is not to be saved.
  void Save(RequestKey key);

  // Makes the request give up its lease, as by a preemption, and keeps it out of the steps until Unpause, which makes
  // it wait. After `time`, EndDue ends it with kUnread. Does nothing for an unknown key, or twice. Call them between
  // steps.
  void Pause(RequestKey key, absl::Time now, absl::Duration time);
  void Unpause(RequestKey key);

  // Makes EndDue end the request with `reason`, or only its output `output`. Does nothing for an unknown key.
  static constexpr int32_t kAllOutputs = -1;
  void Cancel(RequestKey key, FinishReason reason, int32_t output = kAllOutputs);

  // Ends what was cancelled and what is past its deadline. Call it between steps, like every method that ends a
  // sequence: a lease may not go while the model writes to it.
  void EndDue(absl::Time now, std::vector<TokenEvent>* events);

  // RunIdleWork does the work that is due while there is no step to make: the tiers', and that of paused requests.
  // NextIdleWork returns when it, or EndDue, is due again. REQUIRES: empty().
  void RunIdleWork(absl::Time now);
  absl::Time NextIdleWork(absl::Time now) const;
  // Drops the prefixes of `salt`, or all, from the cache and the tiers below it. What running sequences use of them
  // stays theirs. CallWhenGone: see PrefixTier. Call it between steps.
  FreedBytes DropPrefixes(std::optional<absl::string_view> salt);
  void CallWhenGone(std::function<void(const absl::Status&)> done) { swap_.CallWhenGone(std::move(done)); }
  // Moves what the cache still holds down to the disk, if there is one. REQUIRES: no sequence; nothing follows.
  void SaveAll(absl::Time now);

  // The next step, valid until the next call of any method but counts(). Follow it by Commit or FailStep.
  const StepPlan& Plan(absl::Time now);

  // Takes in the plan's result. REQUIRES: one row per row of the plan.
  void Commit(const StepResult& result, absl::Time now, std::vector<TokenEvent>* events);

  // Takes in a failed step, whose writes are undefined. Ends the plan's request with `error` if it has only one, or if
  // the device is lost (DATA_LOSS). Else its requests are to be computed again one by one. True: some still are, so it
  // is not known yet whether one of them failed the step. Other requests stay.
  bool FailStep(const absl::Status& error, absl::Time now, std::vector<TokenEvent>* events);

  // Ends every sequence.
  void EndAll(FinishReason reason, const absl::Status& error, absl::Time now, std::vector<TokenEvent>* events);

  // Whether there is no step to make. Paused requests may be left.
  bool empty() const { return running_.empty() && waiting_.empty(); }
  const Counts& counts() const { return counts_; }
  const HostTier& host_tier() const { return swap_.host_tier(); }
  const PrefixTier& prefix_tier() const { return swap_.prefix_tier(); }
  // What a new request would find before it.
  Backlog backlog() const;
  // What waits of each tenant: see SchedulingPolicy::GetQueues.
  bool GetQueues(std::vector<TenantQueue>* queues) const { return policy_->GetQueues(queues); }
  int64_t max_sequence_tokens() const { return options_.max_sequence_tokens; }
  // The most tokens that an encoder reads: what a step holds beside a token of the decoder. 0: the model has none.
  int64_t max_encoder_tokens() const {
    return cache_->plan().has_cross() ? std::min(options_.max_sequence_tokens, options_.max_step_tokens - 1) : 0;
  }
  int64_t prefill_chunk_tokens() const { return options_.prefill_chunk_tokens; }

 private:
  Scheduler(Cache* cache, const Options& options);

  // Makes all requests of the plan suspects, which wait without their caches. Ends those that too many steps failed
  // with.
  void SuspectPlanned(const absl::Status& error, absl::Time now, std::vector<TokenEvent>* events);
  // Makes the paused requests wait that EndDue is to end.
  void UnpauseDue(absl::Time now);
  void GrowAndAdmit(absl::Time now);
  // Gives each running sequence its tokens of the step. Returns the budget left for new ones; 0 when the cache is full.
  // paced: the pacer limits prefill beside sequences that decode.
  int64_t GrowRunning(bool paced);
  // Returns how many of the step's `left` tokens the sequence may spend on `use`. For the first running request, and
  // when nothing runs, that is all of them, so that there is always progress. Else the policy decides.
  int64_t TokenLimit(const Sequence& sequence, TokenUse use, int64_t left);
  // The tokens of the sequence's next chunk; see PrefixSharing::ChunkTokens.
  int64_t ChunkTokens(const Sequence& sequence, int64_t limit, int64_t room) const;
  // Grows running_[*index], preempting others if it must. False when it cannot.
  bool GrowOrPreempt(size_t* index, int64_t num_tokens);
  // Preempts a request that was admitted after that of running_[*index]. False: there is none, or the policy spares it.
  // If the policy prefers the sequence's own request, *index is then the last one before it.
  bool PreemptFor(size_t* index);
  // Preempts the request of running_[index]. Returns the index of its first sequence, where the next one is now.
  // `keep_cache` false: what is in the cache is undefined. num_grown: as many of running_ have grown in this pass by
  // their step_tokens.
  size_t Preempt(size_t index, bool keep_cache = true, size_t num_grown = 0);
  // Drops drafts that their constraints do not allow.
  void CheckDrafts();
  // Lets the step check the drafts that the budget and the cache have room for.
  void GrowForDrafts(int64_t* budget);

  void AdmitWaiting(int64_t budget, absl::Time now);
  // The bytes that a running sequence lacks for the tokens that it has to compute.
  int64_t PromisedBytes(const Sequence& sequence) const;
  // Gives the sequence a lease that holds what there is of its cache. False: a sequence of `length` tokens does not
  // fit, with its forks and beside `promised` bytes of others, or it has to wait for a copy.
  bool TakeLease(Sequence* sequence, int64_t length, const Forks& forks, int64_t promised);
  // Whether trying the sequence again is useless: it lacked room a few steps ago, and no room was returned since.
  bool StillLacksRoom(const Sequence& sequence);
  // Moves the request of waiting_[index] to the running ones, and makes its other outputs if this is the first time.
  void MoveToRunning(size_t index, absl::Time now);
  // The forks of a request's first sequence, whose prompt they share unless a crop may take that from them.
  Forks ForksOf(int64_t prompt_tokens, int64_t num_sequences) const;

  void AddRow(Sequence* sequence);
  // Counts what the step computed of the sequence.
  ComputedTokens CountComputed(const StepRow& row, Sequence* sequence);
  // Waits for the copies beside the step.
  void FinishCopies(absl::Time now);
  // Ends the commit of every row that chose tokens, with those that its constraint forces after them.
  void CommitForced(absl::Time now, std::vector<TokenEvent>* events);
  // Removes the sequence from the index and tells the policy. Its owner destroys it afterwards.
  void Forget(const Sequence& sequence);
  void RemoveFinished();
  // Updates counts_: `sign` is +1 when the sequence joins those waiting, -1 when it leaves them.
  void CountWaiting(const Sequence& sequence, int64_t sign);
  // Updates counts_ for a waiting sequence whose cache is now in host memory. Does nothing for null.
  void CountSwapOut(const Sequence* sequence);
  const Sequence* next_waiting() const { return waiting_.empty() ? nullptr : waiting_.front().get(); }

  // The waiting sequence that was tried last, when the arena had no room for it.
  struct LackedRoom {
    RequestKey key = 0;
    size_t num_running = 0;
    int64_t available_bytes = 0;
    int64_t num_steps = 0;  // since
  };

  Cache* const cache_;
  const Options options_;  // clipped to what the arena and the steps hold
  FcfsPolicy fcfs_;
  SchedulingPolicy* const policy_;
  Counts counts_;
  PrefixSharing sharing_;
  SwapManager swap_;  // before the sequences, whose caches count there
  Saver saver_;
  OutputCommitter committer_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> paused_;
  std::unordered_map<RequestKey, Sequence*> by_key_;  // any sequence of the request
  LackedRoom lacked_room_;
  absl::Time next_deadline_ = absl::InfiniteFuture();  // none here is earlier
  bool any_cancelled_ = false;
  Suspects suspects_;
  absl::Time plan_start_;
  StepPacer pacer_;
  int64_t withheld_ = 0;  // tokens that the pacer keeps from the step being planned
  StepPlan plan_;
  std::vector<Sequence*> planned_;  // by row of plan_
  MaskWorkers mask_workers_;        // after the sequences, whose constraints its threads use
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_SCHEDULER_H_
