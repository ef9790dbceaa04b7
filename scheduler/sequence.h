// One output of a request in the scheduler: its tokens, its place in the cache and its times. A request of several
// outputs is several sequences (scheduler/output/output_group.h). Engine thread only.
//
// Invariants:
//   - A sequence holds a lease exactly while it is running and not parked.
//   - Between steps, tokens [0, num_computed()) are in the cache and at least one token is not. A beam that waits for
//     the others of its search is the exception.
//   - `drafts` is empty except from Plan to Commit.
//   - From admission on, `tokens` and `drafts` have room for all they may ever hold. So spans of them stay valid, and
//     appending never allocates.
#ifndef BERTH_SCHEDULER_SEQUENCE_H_
#define BERTH_SCHEDULER_SEQUENCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "cache/lease.h"
#include "scheduler/output/output_constraint.h"
#include "scheduler/request.h"
#include "scheduler/tiers/host_tier.h"

namespace berth {

struct OutputGroup;
struct TenantAccount;

// What FairPolicy keeps with a sequence; see scheduler/policy/fair_policy.h.
struct FairTurn {
  TenantAccount* account = nullptr;  // of the request's tenant; null under another policy
  absl::Time due;                    // when it arrived, moved by its priority: the tenant's earliest goes first
  int64_t number = 0;                // of the request, in order of arrival
  size_t place = ~size_t{0};         // in its tenant's queue; the default: it does not wait
  int64_t prepaid_tokens = 0;        // tokens to prefill that its account has been charged for
  int64_t waiting_tokens = 0;        // that it had to prefill when it began to wait
  double charged = 0;                // for it, since it arrived
  int64_t held_bytes = 0;            // of its lease after the last step, without what it shares
};

struct Sequence {
  explicit Sequence(Request r)
      : request(std::move(r)),
        tokens(std::move(request.prompt)),
        prompt_length(static_cast<int64_t>(tokens.size())),
        num_own_biases(request.sampling.logit_bias.size()),
        times{.arrival = request.arrival} {
    std::sort(request.stop_token_ids.begin(), request.stop_token_ids.end());
    if (const std::shared_ptr<Progress> progress = std::move(request.progress); progress != nullptr) {
      tokens.insert(tokens.end(), progress->tokens.begin(), progress->tokens.end());
      logprobs = std::move(progress->logprobs);
      request.prompt_logprobs = -1;
    }
    if (request.prompt_logprobs >= 0) prompt_logprobs.entries_per_token = 1 + request.prompt_logprobs;
    constraint = OutputConstraint(request, num_generated());
  }
  // Plans and the scheduler's index point to it.
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_encoder_tokens() const { return static_cast<int64_t>(request.encoder_tokens.size()); }
  int64_t num_computed() const { return lease.num_tokens(); }
  // Known tokens left to compute. While a step is planned and run: those that it leaves.
  int64_t num_remaining() const { return std::max<int64_t>(0, num_tokens() - num_computed()); }
  // Tokens to compute once it gets a lease, as far as that is known before.
  int64_t num_to_prefill() const {
    return swapped.empty() ? num_tokens() + num_encoder_tokens() : num_tokens() - swapped.snapshot().num_tokens;
  }
  // Tokens that it still has to compute itself. A parked sequence gets the rest of its prompt from another.
  int64_t num_owed() const { return parked ? num_tokens() - (prompt_length - 1) : num_remaining(); }
  int64_t num_generated() const { return num_tokens() - prompt_length; }
  // Past its prompt, with only the newest token left to compute.
  bool decoding() const { return num_remaining() == 1 && num_computed() >= prompt_length; }
  // Past its prompt, with several tokens of its output left to compute: forced ones, or what a preemption lost.
  bool catching_up() const { return num_remaining() > 1 && num_computed() >= prompt_length; }
  // Whether it asks for logprobs of its prompt, and some are still to be computed.
  bool wants_scores() const { return request.prompt_logprobs >= 0 && num_scored < prompt_length - 1; }
  // Whether it asks for the mean of its hidden states, and some are still to be computed.
  bool wants_states() const { return request.pooling == Pooling::kMean && num_pooled < prompt_length; }
  // The number of its first tokens that it may take from others: those whose logits or states it needs no more, or
  // never did.
  int64_t num_adoptable() const { return wants_scores() ? num_scored : wants_states() ? num_pooled : num_tokens() - 1; }
  bool finished() const { return times.finished != absl::InfinitePast(); }
  bool ever_admitted() const { return times.first_scheduled != absl::InfinitePast(); }
  // It runs again after a pause, or ends.
  void EndPause(absl::Time now) {
    if (paused_since != absl::InfinitePast()) times.paused += now - paused_since;
    paused_since = absl::InfinitePast();
  }
  bool StopsAt(int32_t token) const {
    return std::binary_search(request.stop_token_ids.begin(), request.stop_token_ids.end(), token);
  }

  Request request;              // its prompt moved to `tokens`, its stop tokens sorted
  std::vector<int32_t> tokens;  // prompt, then output
  std::vector<int32_t> drafts;  // tokens that may follow; the step checks them
  int64_t prompt_length;
  // What the rules of its request say of its next token (token_bans.h): the tokens that may not come. Their biases
  // follow the client's own num_own_biases in request.sampling.logit_bias.
  std::vector<int32_t> banned;
  size_t num_own_biases;
  SequenceLease lease;
  SwappedCache swapped;  // the cache of its first tokens in host memory, while it waits; empty: none
  RequestTimes times;

  OutputConstraint constraint;

  std::vector<OutputLogprobs> logprobs;  // of the output, if the request is saved and asks for them
  bool save_due = false;

  PromptLogprobs prompt_logprobs;  // so far; they leave with the first token
  int64_t num_scored = 0;          // prompt tokens whose logprobs are known; the first has none and does not count

  std::vector<double> pooled;  // of an embedding: the sum of the hidden states so far
  int64_t num_pooled = 0;      // prompt tokens that it is over

  // After a failed step that it shared with others: the length that it has to compute alone to be cleared; 0: cleared.
  int64_t suspect_until = 0;
  int64_t num_shared_failures = 0;  // such steps since the last that was found to be another request's fault

  bool encoded = false;       // whether its lease holds the encoder's output, or will after the step
  int64_t step_tokens = 0;    // tokens it has in the step being planned or run, drafts included
  bool step_decodes = false;  // whether those are one decoded token
  int64_t num_counted = 0;    // known tokens that were computed, or found in the cache, at least once
  int64_t num_cached = 0;     // prompt tokens that its first lease shared
  PrefixHit hit;              // what its lease adopted; states are worth keeping where its tokens leave the known ones
  FinishReason cancelled = FinishReason::kNone;    // how its request is to end before the next step
  bool paused = false;                             // neither runs nor waits: see Scheduler::Pause
  absl::Time paused_until;                         // then its request ends
  absl::Time paused_since = absl::InfinitePast();  // InfinitePast: it has run since, or never ran

  std::shared_ptr<OutputGroup> group;                   // null: it is the request's only output
  int32_t output = 0;                                   // its index among the request's outputs
  bool parked = false;                                  // waits for the group's first member to compute what they share
  FinishReason output_cancelled = FinishReason::kNone;  // how it alone is to end, once it is forked

  mutable FairTurn turn;  // the policy's own: all else of a sequence it may only read
};

inline bool SameRequest(const Sequence& a, const Sequence& b) { return a.request.key == b.request.key; }

}  // namespace berth

#endif  // BERTH_SCHEDULER_SEQUENCE_H_
