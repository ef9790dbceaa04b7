// Decides what a sequence shares with others through the prefix index: what its new lease adopts, and what it
// publishes. Holds no state; all of it is in the sequences, their leases and the index. Engine thread only.
//
// Rules:
//   - A request shares nothing if it asks not to, if it has an encoder's input, or while it is longer than
//     max_shareable_tokens.
//   - Whole blocks are published as they fill.
//   - Recurrent states are published where a later sequence is likely to leave this one
//   (scheduler/tiers/state_positions.h),
//     and at the ends of outputs. Where a chunk ends these are the sequence's own states. Within a chunk, the step
//     copies them at marks (SequenceLease::MarkStates).
//   - With aligned_prefill_chunks only whole chunks of prompts are shared.
#ifndef BERTH_SCHEDULER_TIERS_PREFIX_SHARING_H_
#define BERTH_SCHEDULER_TIERS_PREFIX_SHARING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "cache/spec.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/sequence.h"
#include "scheduler/tiers/state_positions.h"

namespace berth {

class PrefixSharing {
 public:
  // `plan` must outlive this.
  PrefixSharing(const SchedulerOptions& options, const CachePlan* plan)
      : options_(options), plan_(plan), positions_(options.state_checkpoint_tokens, plan->StateBytesPerSequence()) {}

  // Whether the sequence may share anything at its present length.
  bool MayShare(const Sequence& sequence) const;
  // The first tokens of the sequence, whose cache it may get from others, except for the last one. Empty: it may not.
  absl::Span<const int32_t> ShareableTokens(const Sequence& sequence) const;
  // The number of tokens that a sequence gets from others is a multiple of this.
  int64_t multiple() const { return options_.aligned_prefill_chunks ? options_.prefill_chunk_tokens : 1; }

  // Lets the sequence's new lease share what the index holds of its prefix, and notes the hit.
  void Adopt(Sequence* sequence) const;
  // Whether one of `running` is about to compute a part of the sequence's prefix that the index lacks. Then it is
  // better to wait than to compute that part twice.
  bool WaitsForPrefix(const Sequence& sequence, absl::Span<const std::unique_ptr<Sequence>> running) const;

  // The tokens of the sequence's chunk, of `wanted`, if it may take `limit` of the `room` that the step has. Aligned
  // chunks of a prompt begin and end at their places, whatever else runs: such a chunk is whole, or 0.
  int64_t ChunkTokens(const Sequence& sequence, int64_t wanted, int64_t limit, int64_t room) const;
  // Marks the states that the planned step is to keep. Takes only what no lease holds, so call it when all leases have
  // grown for the step.
  void MarkStates(Sequence* sequence) const;
  // Tells the index what the sequence has computed. `at_end`: its output ends here, or it is preempted.
  // REQUIRES: the step that computed it is done.
  void Publish(Sequence* sequence, bool at_end) const;

  // The lengths of the sequence's prefixes that later sequences are likely to want. They are published.
  using Lengths = absl::InlinedVector<int64_t, 4>;
  Lengths LengthsToKeep(const Sequence& sequence) const;

 private:
  // The number of first tokens that the sequence may share: those whose cache would be the same after any other prompt
  // that begins with them.
  int64_t NumShareable(const Sequence& sequence) const;

  const SchedulerOptions options_;
  const CachePlan* const plan_;
  const StatePositions positions_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_PREFIX_SHARING_H_
