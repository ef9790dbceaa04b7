// Hands requests on to be kept elsewhere: what they need to go on later, perhaps in another process. Engine thread
// only.
//
// A save is due when somebody asks for it and after every autosave_tokens output tokens; it happens after a step,
// within the Suspender's budget, and waits for a later step while the budget or the sink has no room. A cache that no
// step's budget allows is left out, and computed again by whoever resumes. When a request with `saved` ends, it is
// handed over once more, as the last time.
#ifndef BERTH_SCHEDULER_SAVER_H_
#define BERTH_SCHEDULER_SAVER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "scheduler/request.h"
#include "scheduler/sequence.h"
#include "scheduler/suspender.h"

namespace berth {

struct SavedRequest {
  RequestKey key = 0;
  std::optional<Progress> progress;  // none: it failed, or was over when it came; what was saved before stands
  bool last = false;
};

// Receives what is to be kept. Called on the engine thread: must hand over and return, never block.
class SaveSink {
 public:
  virtual ~SaveSink() = default;
  // Whether it can take another cache now. The last of a request is handed over in any case, but without its cache.
  virtual bool ready() const = 0;
  virtual void Take(SavedRequest saved) = 0;
};

class Saver {
 public:
  // `sink` may be null: then nothing is ever saved.
  Saver(SaveSink* sink, Suspender* suspender) : sink_(sink), suspender_(suspender) {}

  void Ask(Sequence* sequence);
  // A token was appended.
  void OnToken(Sequence* sequence);
  // The sequence is about to go. REQUIRES: between steps, or its step is done.
  void OnEnd(FinishReason reason, Sequence* sequence);
  // Hands over what is due. REQUIRES: between steps.
  void HandOver(const std::vector<std::unique_ptr<Sequence>>& running,
                const std::deque<std::unique_ptr<Sequence>>& waiting);

 private:
  bool Saves(const Sequence& sequence) const { return sink_ != nullptr && sequence.request.saved; }
  // False: not now.
  bool Save(Sequence* sequence);

  SaveSink* const sink_;
  Suspender* const suspender_;
  int64_t num_due_ = 0;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_SAVER_H_
