// The outputs of one request. Each is a sequence, and they share the cache of what they have in common. Engine thread
// only.
//
// The first sequence computes the prompt except for its last token. Then the others fork off it, and each computes that
// token itself. From there on they are independent: output i samples with seed + i, as a request of its own would. A
// beam search starts the same way. Its beams step together, and after each step a beam's lease is a fork of its
// parent's.
//
// Invariants:
//   - the members are neighbours in the scheduler's queues, all running or all waiting (only one exists before the
//     first admission);
//   - unforked, all but the first are parked;
//   - a beam search keeps all its members until it ends.
#ifndef BERTH_SCHEDULER_OUTPUT_OUTPUT_GROUP_H_
#define BERTH_SCHEDULER_OUTPUT_OUTPUT_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/step.h"
#include "scheduler/output/beam_search.h"
#include "scheduler/output/output_constraint.h"
#include "scheduler/sequence.h"

namespace berth {

struct OutputGroup {
  // For a request of several sequences; `first` becomes its only member.
  static void Create(Sequence* first);

  // How many tokens of the prompt are computed once. At least one, so that an encoder runs once too.
  static int64_t ForkPoint(const Sequence& sequence) { return std::max<int64_t>(1, sequence.prompt_length - 1); }
  int64_t num_sequences() const { return complete ? static_cast<int64_t>(members.size()) : num_planned; }
  int64_t longest() const;  // tokens of the longest member
  bool ready_to_fork() const { return !forked && members[0]->num_computed() == ForkPoint(*members[0]); }

  // The other sequences, parked, once.
  std::vector<std::unique_ptr<Sequence>> MakeOthers();
  // A member on the other side of Options::rope_switch_length than the first computes its prompt again, as that may be
  // rotated otherwise. REQUIRES: ready_to_fork().
  void Fork(int64_t rope_switch_length);
  // Returns the group to the unforked state. REQUIRES: no member holds a lease afterwards.
  void Park();

  // Takes in the result of a beam's row. True when it was the last beam's: then the search has made its step, and
  // either is over or has given each beam its next token. REQUIRES: a beam search.
  bool Offer(const StepRow& row, const RowResult& result, const Sequence& member);

  std::vector<Sequence*> members;      // those that have not ended, by output
  int64_t num_planned = 0;             // how many there will be
  bool complete = false;               // all of them were made
  bool forked = false;                 // each has a lease of its own
  std::unique_ptr<BeamSearch> search;  // null: the outputs are sampled

 private:
  // A row's result until all are there.
  struct Offered {
    std::vector<TokenLogprob> top;
    std::vector<int32_t> banned;
    std::vector<int32_t> forced;
  };
  // Gives each member the tokens, the lease and the constraint of its beam.
  void FollowBeams();

  std::vector<Offered> offered_;  // by member
  int64_t num_offered_ = 0;
  std::vector<BeamSearch::Row> rows_;
  std::vector<SequenceLease> leases_;  // of FollowBeams, as the next; empty between its calls
  std::vector<OutputConstraint> constraints_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_OUTPUT_OUTPUT_GROUP_H_
