// Decides what each step computes: policy only. Plan() before a step, Commit() or FailStep() after it; nothing calls
// back, but the save sink takes what is to be saved. Engine thread only.
//
// Policy: first come, first served. Every running sequence that is past its prompt decodes one token; what is left of
// the token budget goes to prefill chunks, oldest first; then to new sequences while a lease for all their tokens can
// be had, and nobody overtakes one that has to wait: for a lease, for a prefix that a running one is computing, or for
// its own cache or prefix to come back from a tier (scheduler/prefix_tier.h). When
// a running sequence cannot grow, younger ones give their leases back, youngest first, and wait (their tokens are kept,
// nothing is lost); their cache is suspended to the host tier or recomputed, whichever costs less (Suspender). When
// there is no younger one, or while the cache of one is on its way out, it sits the step out. The encoder of an
// encoder-decoder model sees all its tokens at once, so it runs whole in the sequence's first step, and again in the
// first after a preemption; a sequence waits until the budget holds that.
//
// The outputs of one request (scheduler/output_group.h) are admitted and preempted together, and end together but for
// those that stop by themselves.
//
// Why nothing deadlocks: the oldest request grows in every step, but for those in which a copy makes room for it while
// others run. Alone it fits by CheckRequest, since the cache can gather whatever is free.
//
// Invariants:
//   - running sequences are in order of arrival and of their outputs, waiting ones too, and every running one came
//   before every waiting one;
//   - a plan has at most max_step_tokens tokens, and is empty only when there is no sequence, or when all wait for the
//     disk.
#ifndef BERTH_SCHEDULER_SCHEDULER_H_
#define BERTH_SCHEDULER_SCHEDULER_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/cache.h"
#include "models/step.h"
#include "scheduler/prefix_tier.h"
#include "scheduler/request.h"
#include "scheduler/saver.h"
#include "scheduler/sequence.h"
#include "scheduler/suspender.h"

namespace berth {

class Scheduler {
 public:
  struct Options {
    int64_t max_running = 64;            // sequences that hold a lease at once
    int64_t max_step_tokens = 512;       // token budget of one step; at least max_running
    int64_t prefill_chunk_tokens = 256;  // the most tokens of one sequence in one step; max_step_tokens if that is less
    int64_t max_sequence_tokens = 0;     // prompt + output of one sequence; must be set; less if the arena holds less.
                                         // Of an encoder-decoder model what the decoder holds.
    // A sequence that grows past this length is computed anew, because the model computes all its tokens otherwise from
    // there on (ModelInfo::recompute_length); 0: none.
    int64_t recompute_length = 0;
    // Whether requests share prefixes, and the longest sequence that does (ModelInfo::share_length); 0: no limit.
    bool share_prefixes = false;
    int64_t share_length = 0;
    // A prompt's recurrent states are kept at multiples of this, beside its end and the ends of outputs: what a hit has
    // to replay; 0: only there.
    int64_t state_checkpoint_tokens = 0;
    // Chunks end at multiples of prefill_chunk_tokens and only whole ones of prompts are shared, so that a hit computes
    // the same chunks as a cold run: equal bits.
    bool aligned_prefill_chunks = false;
    int64_t compact_bytes_per_step = 0;  // the most that compaction moves between two steps
    // For tests: every so many output tokens of a sequence, some of its cache is dropped and computed again; 0: never.
    int64_t crop_every = 0;
    Suspender::Options suspend;
    PrefixTier::Options prefixes;  // of no effect without a host tier
    // Gets the requests that are to be saved; null: none is. Must outlive the scheduler.
    SaveSink* save_sink = nullptr;
  };

  // What the metrics say. The first four are of now, the others since the start.
  struct Counts {
    int64_t num_running = 0;
    int64_t num_waiting = 0;
    int64_t num_new = 0;         // those waiting that never ran
    int64_t waiting_tokens = 0;  // tokens that those waiting have to prefill
    int64_t num_preemptions = 0;
    int64_t num_suspensions = 0;  // preemptions whose cache went to the host tier
    int64_t prompt_tokens = 0;    // computed or found in the cache; recomputation not counted
    int64_t generation_tokens = 0;
    int64_t draft_tokens = 0;            // drafts checked
    int64_t accepted_draft_tokens = 0;   // drafts that the model chose too
    int64_t prefix_queried_tokens = 0;   // of prompts that looked for their prefix
    int64_t prefix_hit_tokens = 0;       // of those, found
    int64_t prefix_replayed_tokens = 0;  // of those, known but computed again from the state before them
  };

  // `cache` must outlive the scheduler and have no other user. INVALID_ARGUMENT naming the option that makes no sense.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(Cache* cache, Options options);

  // INVALID_ARGUMENT when the request's outputs are more than may run at once, or do not fit the arena together.
  // Thread-safe. REQUIRES: ValidateRequest accepts the request.
  absl::Status CheckRequest(const Request& request) const;

  // REQUIRES: ValidateRequest and CheckRequest accept the request, and no sequence here has its key.
  void Add(Request request);

  // Has the request saved soon. A key that is not here is no error, nor one of a request that is not to be saved.
  void Save(RequestKey key);

  // Lets EndDue end the request with `reason`, or one output of it that its client has enough of. A key that is not
  // here is no error.
  static constexpr int32_t kAllOutputs = -1;
  void Cancel(RequestKey key, FinishReason reason, int32_t output = kAllOutputs);

  // Ends what was cancelled and what is past its deadline. Between steps only, like every method that ends a sequence:
  // a lease may not go while the model writes to it.
  void EndDue(absl::Time now, std::vector<TokenEvent>* events);

  // What the tiers have to do while there is no sequence, and when that is next.
  void Rest(absl::Time now);
  absl::Time NextRest(absl::Time now) const { return prefixes_.NextWork(now); }
  // Moves what the cache still holds down to the disk, if there is one. REQUIRES: empty(); nothing follows.
  void SaveAll(absl::Time now) { prefixes_.SaveAll(now); }

  // The next step, valid until the next call of any method but counts(). Follow it by Commit or FailStep.
  const StepPlan& Plan(absl::Time now);

  // Takes in the plan's result. REQUIRES: one row per row of the plan.
  void Commit(const StepResult& result, absl::Time now, std::vector<TokenEvent>* events);

  // Ends every sequence of the plan with `error`: what the step wrote is undefined. The others go on.
  void FailStep(const absl::Status& error, absl::Time now, std::vector<TokenEvent>* events);

  // Ends every sequence.
  void EndAll(FinishReason reason, const absl::Status& error, absl::Time now, std::vector<TokenEvent>* events);

  bool empty() const { return running_.empty() && waiting_.empty(); }
  const Counts& counts() const { return counts_; }
  const HostTier& host_tier() const { return suspender_.tier(); }
  const PrefixTier& prefix_tier() const { return prefixes_; }
  int64_t max_sequence_tokens() const { return options_.max_sequence_tokens; }
  // What an encoder may read: as much as a step holds beside a token of the decoder. 0: the model has no encoder.
  int64_t max_encoder_tokens() const {
    return cache_->plan().has_cross() ? std::min(options_.max_sequence_tokens, options_.max_step_tokens - 1) : 0;
  }
  int64_t prefill_chunk_tokens() const { return options_.prefill_chunk_tokens; }

 private:
  Scheduler(Cache* cache, Options options)
      : cache_(cache),
        options_(options),
        suspender_(options.suspend, &cache->storage()),
        prefixes_(options.prefixes, cache, &suspender_),
        saver_(options.save_sink, &suspender_) {}

  // Lets the outputs go apart whose requests have computed what they share.
  void ForkOutputs();
  // Gives each running sequence its tokens of the step. Returns the budget left for new ones; 0 when the cache is full.
  int64_t GrowRunning();
  // Grows running_[index], taking leases from younger ones if it must. False when it cannot.
  bool GrowOrPreempt(size_t index, int64_t num_tokens);
  // Proposes drafts of the tokens that may follow the sequence's next one, where a step can check them; and lets the
  // step check as many as the budget and the cache have room for.
  void ProposeDrafts(Sequence* sequence);
  void AddDrafts(int64_t* budget);
  void PreemptYoungest();
  void AdmitWaiting(int64_t budget, absl::Time now);
  // Gives the sequence a lease that holds what there is of its cache, if it fits at `length` tokens, with its forks and
  // beside `promised` tokens of others.
  bool TakeLease(Sequence* sequence, int64_t length, const Forks& forks, int64_t promised);
  // Whether it need not be tried: it lacked room a few steps ago, and nobody has given any back since.
  bool StillLacksRoom(const Sequence& sequence);
  // The tiers' part of it, which follows. kTaken: the lease holds what was brought back; kWaits: the sequence has to;
  // kNothing: no tier has anything that is worth its cost.
  enum class FromTier { kNothing, kWaits, kTaken };
  FromTier TakeFromTiers(Sequence* sequence, int64_t length, const Forks& forks, int64_t promised);
  FromTier TakePrefix(Sequence* sequence, int64_t length, const Forks& forks, int64_t promised);
  // Goes on with bringing the first `num_tokens` tokens' cache of `image` back, which `entry` owns, or the sequence.
  // True: the sequence's lease holds it.
  bool Restore(Sequence* sequence, const CacheImage& image, PrefixTier::Entry* entry, int64_t num_tokens,
               absl::FunctionRef<bool(const SequenceLease&)> fits);
  void DropRestoring();
  // Copies what is left of the cache that is on its way out; gives its lease back, once all is copied.
  void FinishLeaving();
  void EndLeaving();
  // Gives the sequence the lease of that cache, its own, again, if it fits at `length` tokens beside `promised` others.
  bool TakeBack(Sequence* sequence, int64_t length, int64_t promised);
  // Has what is due copied beside the step that was planned; and takes in what of it was.
  void StartCopies(absl::Time now);
  void FinishCopies(absl::Time now);
  // The bytes that the next sequence will take.
  int64_t NextBytes() const;
  // Has what the sequence leaves in the index saved, when its turn comes.
  void NotePrefixes(const Sequence& sequence, absl::Time now);
  // Admits the other outputs of running_.back().
  void AdmitOthers();
  // The forks of a request's first sequence, whose prompt they share unless a crop may take that from them.
  Forks ForksOf(int64_t prompt_tokens, int64_t num_sequences) const;
  // The tokens whose cache the sequence may get from others; none: it may not. One more than these is known of it.
  absl::Span<const int32_t> ShareableTokens(const Sequence& sequence) const;
  int64_t ShareMultiple() const { return options_.aligned_prefill_chunks ? options_.prefill_chunk_tokens : 1; }
  // Lets the sequence's new lease share what the cache holds of its prefix.
  void Adopt(Sequence* sequence);
  // Whether a running sequence is about to compute a part of the sequence's prefix that the cache has not, so that it
  // is better to wait for it than to compute it twice.
  bool WaitsForPrefix(const Sequence& sequence) const;
  void CountPrefix(Sequence* sequence);
  // Tells the cache what the sequence has computed, for others to share.
  void Publish(Sequence* sequence, bool at_end);
  bool MayShare(const Sequence& sequence) const;
  // How many of its first tokens it may share: those that another's prompt would leave just so in the cache.
  int64_t NumShareable(const Sequence& sequence) const;
  // The sequence's next chunk of at most `budget` tokens.
  int64_t ChunkTokens(const Sequence& sequence, int64_t budget) const;
  void AddRow(Sequence* sequence);
  // Takes in the row's tokens: those that the model chose in the place of drafts while it agreed with them, and one
  // more.
  void AcceptRow(const RowResult& row, Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events);
  // Why the row's token cannot be taken in; OK: it can.
  absl::Status CheckToken(int32_t token, const Sequence& sequence) const;
  // Appends a token and finishes the sequence if that was its last.
  void Accept(int32_t token, const RowResult& row, Sequence* sequence, absl::Time now, TokenEvent* event);
  // Takes in the row of a beam, and the search's step with the last one. Ends the search if that was its last step.
  void AcceptBeam(const StepRow& row, const RowResult& result, Sequence* sequence, absl::Time now,
                  std::vector<TokenEvent>* events);
  // Ends the beams of a search that is over, with the tokens of the best.
  void FinishBeams(Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events);
  // Drops what of the sequence's cache has to be computed again (recompute_length, crop_every).
  void Rewind(Sequence* sequence);
  // Ends the sequence by what befell its request, which hears of it with its last one.
  void EndWithRequest(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
                      std::vector<TokenEvent>* events);
  // The same for all sequences of the request of `sequence`.
  void EndRequest(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
                  std::vector<TokenEvent>* events);
  // Writes the end of `sequence` into `event`. Its owner destroys it afterwards, which returns its lease.
  void Finish(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence, TokenEvent* event);
  void RemoveFinished();
  // Keeps counts_ of those waiting: `sign` is +1 when the sequence joins them, -1 when it leaves.
  void CountWaiting(const Sequence& sequence, int64_t sign);

  Cache* cache_;
  Options options_;      // as in force: clipped
  Suspender suspender_;  // before the sequences, whose caches count here
  PrefixTier prefixes_;
  Saver saver_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::unordered_map<RequestKey, Sequence*> by_key_;  // any one of the request's
  // The lease of the first of those waiting while its cache comes back, in pieces. Not the sequence's yet.
  struct Restoring {
    const Sequence* sequence = nullptr;  // null: nothing is brought back
    const CacheImage* image = nullptr;
    PrefixTier::Entry* entry = nullptr;  // pinned; null: the image is the sequence's own
    SequenceLease lease;
    int64_t size_bytes = 0;  // that the lease gets
    int64_t done_bytes = 0;  // of those, copied
    int64_t due_bytes = 0;   // of those, to be copied by the end of the step that is planned
  };
  Restoring restoring_;
  // The lease of the first of those waiting that has given way, while its cache is copied out, in pieces. No longer the
  // sequence's, but its again if there is room before the copy ends.
  struct Leaving {
    Sequence* sequence = nullptr;  // null: nothing leaves
    SequenceLease lease;
    SuspendedCache cache;
    int64_t done_bytes = 0;  // copied
    int64_t due_bytes = 0;   // to be copied by the end of the step that is planned

    int64_t size_bytes() const { return cache.image().size_bytes; }
  };
  Leaving leaving_;
  // The first of those waiting, when it was tried last and the arena had no room for it.
  struct LackedRoom {
    RequestKey key = 0;
    size_t num_running = 0;
    int64_t available_bytes = 0;
    int64_t num_steps = 0;  // since
  };
  LackedRoom lacked_room_;
  bool awaits_disk_ = false;                           // the first of those waiting does
  absl::Time next_deadline_ = absl::InfiniteFuture();  // none here is earlier
  bool any_cancelled_ = false;
  Counts counts_;
  absl::Time plan_start_;
  StepPlan plan_;
  std::vector<Sequence*> planned_;  // by row of plan_
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_SCHEDULER_H_
