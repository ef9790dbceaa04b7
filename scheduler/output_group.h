// The outputs of one request: a sequence each, which share the cache of what they have in common. Engine thread only.
//
// The first sequence computes the prompt but for its last token; then the others fork off it, and each computes that
// token itself and goes its own way: output i samples with seed + i as a request of its own would. A beam search takes
// the same way; its beams step together, and after each step a beam's lease is a fork of its parent's.
//
// Invariants:
//   - the members are neighbours in the scheduler's queue, all running or all waiting (before the first admission there
//     is one alone);
//   - unforked, all but the first are parked;
//   - a beam search keeps all its members until it ends.
#ifndef BERTH_SCHEDULER_OUTPUT_GROUP_H_
#define BERTH_SCHEDULER_OUTPUT_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/step.h"
#include "scheduler/beam_search.h"
#include "scheduler/sequence.h"

namespace berth {

struct OutputGroup {
  // For a request of several sequences; `first` becomes its only member.
  static void Create(Sequence* first);

  // Of a prompt: how much is computed once. At least one token, so that an encoder runs once too.
  static int64_t ForkPoint(const Sequence& sequence) { return std::max<int64_t>(1, sequence.prompt_length - 1); }
  int64_t num_sequences() const { return complete ? static_cast<int64_t>(members.size()) : num_planned; }
  int64_t longest() const;  // tokens of the longest member
  bool ready_to_fork() const { return !forked && members[0]->num_computed() == ForkPoint(*members[0]); }

  // The other sequences, parked, once.
  std::vector<std::unique_ptr<Sequence>> MakeOthers();
  // REQUIRES: ready_to_fork().
  void Fork();
  // Back to unforked. REQUIRES: no member holds a lease after it.
  void Park();

  // Of a beam search: takes in what the row of a member gave. True when that was the last one to wait for, and the
  // beams have gone on by a token, or the search is over.
  bool Offer(const StepRow& row, const RowResult& result, const Sequence& member);

  std::vector<Sequence*> members;      // that have not ended, by output
  int64_t num_planned = 0;             // how many there are to be
  bool complete = false;               // the others are made
  bool forked = false;                 // each has a lease of its own
  std::unique_ptr<BeamSearch> search;  // null: samples

 private:
  // A row's result until all are there.
  struct Offered {
    std::vector<TokenLogprob> top;
    bool banned = false;  // the stop tokens are
    std::vector<int32_t> forced;
  };
  void GoOn();

  std::vector<Offered> offered_;  // by member
  int64_t num_offered_ = 0;
  std::vector<BeamSearch::Row> rows_;
  std::vector<SequenceLease> leases_;  // of GoOn; empty between its calls
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_OUTPUT_GROUP_H_
