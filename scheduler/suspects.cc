#include "scheduler/suspects.h"

#include <algorithm>
#include <memory>

namespace berth {

bool Suspects::Add(int64_t end, Sequence* sequence) {
  // Each costs all caches of the step, so steps that fail for no request's fault may not be many.
  constexpr int64_t kMaxSharedFailures = 2;
  any_ = true;
  sequence->suspect_until = end;
  return ++sequence->num_shared_failures <= kMaxSharedFailures;
}

Suspects::Turn Suspects::Pick(RunningSequences running, const WaitingSequences& waiting) {
  turn_ = Turn::kAll;
  if (!any_) return turn_;
  const auto pick_of = [this](const auto& sequences) {
    const auto suspect = [](const std::unique_ptr<Sequence>& sequence) { return sequence->suspect_until > 0; };
    const auto found = std::find_if(sequences.begin(), sequences.end(), suspect);
    if (found == sequences.end()) return false;
    alone_ = found->get();
    turn_ = Turn::kAlone;
    return true;
  };
  any_ = pick_of(running) || pick_of(waiting);
  return turn_;
}

}  // namespace berth
