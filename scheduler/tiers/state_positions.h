// Chooses the positions at which a sequence's recurrent states are kept for later ones: where those are likely to
// depart from it. A state cannot be cut, so a sequence starts from the last one that is kept before it departs.
//
// Such positions are, where `state_checkpoint_tokens` is kAutoCheckpoints:
//   - the end of the prompt, and the end of what the index knew of it: another prompt departed there;
//   - the ends of messages;
//   - a grid, for departures within a message. Its spacing is a sixteenth of the position, so that about 3 % of a
//     shared beginning are computed again. It is at least kLeastSpacing, and at least 1 token for kGridBytesPerToken.
// Where it is n > 0: the first two, and multiples of n. Where it is 0: the first two.
//
// Copying states takes time, so of the ends of messages only the first and the last three count. The others were
// among the last of an earlier request.
//
// Plain data and pure functions. Engine thread only.
#ifndef BERTH_SCHEDULER_TIERS_STATE_POSITIONS_H_
#define BERTH_SCHEDULER_TIERS_STATE_POSITIONS_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "scheduler/sequence.h"

namespace berth {

class StatePositions {
 public:
  static constexpr int64_t kLeastSpacing = 32;
  static constexpr int64_t kGridBytesPerToken = 8 << 10;
  static constexpr size_t kLastMessages = 3;
  // The most positions of one step.
  static constexpr int64_t kMostMarks = 64;

  // `state_bytes`: of the states of one sequence.
  StatePositions(int64_t state_checkpoint_tokens, int64_t state_bytes);

  // Whether to keep the states after the sequence's first `position` tokens.
  bool Keeps(const Sequence& sequence, int64_t position) const;
  // The positions to keep within (start, end), ascending. At most kMostMarks: the last ones.
  using Positions = absl::InlinedVector<int64_t, 32>;
  Positions Between(const Sequence& sequence, int64_t start, int64_t end) const;
  // The last position of the grid at or before `position`; 0: none.
  int64_t OnGrid(int64_t position) const;

 private:
  bool automatic() const { return fixed_ < 0; }
  // The distance of the grid's positions around `position`; 0: there is no grid.
  int64_t Spacing(int64_t position) const;
  // Whether end number `index` of `count` messages counts.
  static bool KeepsMessageEnd(size_t index, size_t count) { return index == 0 || index + kLastMessages >= count; }

  const int64_t fixed_;  // state_checkpoint_tokens
  int64_t least_spacing_ = kLeastSpacing;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_STATE_POSITIONS_H_
