// Finds whose fault a failed step is. If the step held several requests, all of them lose their caches and wait. Each
// is then computed again in steps of its own, until it has all that it had. A request whose own step fails is ended,
// and the others continue. So a request ends for a fault that is not its own only if steps fail that no request fails
// alone.
//
// A suspect is a sequence that still has to be computed so (Sequence::suspect_until). Engine thread only.
#ifndef BERTH_SCHEDULER_SUSPECTS_H_
#define BERTH_SCHEDULER_SUSPECTS_H_

#include <cstdint>

#include "scheduler/policy/policy.h"
#include "scheduler/sequence.h"

namespace berth {

class Suspects {
 public:
  // Which running requests take part in a step.
  enum class Turn {
    kAll,
    kAlone,   // only that of alone(), which is suspected; no other is admitted
    kOthers,  // only those that are not suspected, because alone() has no room; none is admitted
  };

  // Suspects a sequence of a failed step, which was to compute it up to token `end`. False: too many such steps failed
  // with it, so its request has to end.
  bool Add(int64_t end, Sequence* sequence);
  // A step computed the sequence up to token `end`.
  static void OnComputed(int64_t end, Sequence* sequence) {
    if (end >= sequence->suspect_until) sequence->suspect_until = 0;
  }
  // A sequence waits that did not take part before: it was paused.
  void OnReturn(const Sequence& sequence) { any_ = any_ || sequence.suspect_until > 0; }

  // Chooses whose turn the next step is.
  Turn Pick(RunningSequences running, const WaitingSequences& waiting);
  // The one that has its turn has no room. Until the next Pick the others have it, if any runs.
  void PassTurn(bool any_runs) { turn_ = any_runs ? Turn::kOthers : Turn::kAll; }

  Turn turn() const { return turn_; }
  const Sequence* alone() const { return alone_; }  // while turn() is kAlone
  bool SitsOut(const Sequence& sequence) const {
    if (turn_ == Turn::kAlone) return !SameRequest(sequence, *alone_);
    return turn_ == Turn::kOthers && sequence.suspect_until > 0;
  }

 private:
  bool any_ = false;  // if false, no sequence that runs or waits is a suspect
  Turn turn_ = Turn::kAll;
  const Sequence* alone_ = nullptr;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_SUSPECTS_H_
