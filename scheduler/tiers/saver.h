// Hands requests to the save sink: what they need to resume later, perhaps in another process. Engine thread only.
//
// A save is due when a client asks for it, and after every autosave_tokens output tokens. It happens after a step,
// within the step's copy budget, and the saves that are due longest come first. While the budget or the sink has no
// room, they wait for a later step. A cache that is larger than any step's budget is left out, and computed again by
// whoever resumes. When a request with `saved` ends, it is handed over for the last time.
//
// Invariant: the sequences with save_due are those in due_, once each.
#ifndef BERTH_SCHEDULER_TIERS_SAVER_H_
#define BERTH_SCHEDULER_TIERS_SAVER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/request.h"
#include "scheduler/sequence.h"
#include "scheduler/tiers/step_copies.h"

namespace berth {

struct SavedRequest {
  RequestKey key = 0;
  std::optional<Progress> progress;  // none: it failed, or had ended before; what was saved before stands
  bool last = false;
};

// Receives what is to be saved. Called on the engine thread: must not block.
class SaveSink {
 public:
  virtual ~SaveSink() = default;
  // Whether it can take another cache now. If not, the last save of a request is handed over without its cache.
  virtual bool ready() const = 0;
  virtual void Take(SavedRequest saved) = 0;
};

class Saver {
 public:
  // With a null `sink` nothing is ever saved.
  Saver(SaveSink* sink, StepCopies* copies) : sink_(sink), copies_(copies) {}

  // Makes a save of the sequence due.
  void Ask(Sequence* sequence);
  // Call after a token was appended.
  void OnToken(Sequence* sequence);
  // Call before the sequence goes. REQUIRES: no step writes to its lease.
  void OnEnd(FinishReason reason, Sequence* sequence);
  // Hands over the saves that are due. REQUIRES: between steps.
  void HandOver();
  bool any_due() const { return !due_.empty(); }

 private:
  bool Saves(const Sequence& sequence) const { return sink_ != nullptr && sequence.request.saved; }
  // False: the sink or the budget has no room now.
  bool Save(Sequence* sequence);

  SaveSink* const sink_;
  StepCopies* const copies_;
  std::vector<Sequence*> due_;  // in the order in which their saves became due
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_SAVER_H_
