#include "scheduler/tiers/saver.h"

#include <algorithm>
#include <utility>

namespace berth {
namespace {

// Everything except the cache.
Progress ProgressOf(const Sequence& sequence) {
  Progress progress;
  progress.tokens.assign(sequence.tokens.begin() + sequence.prompt_length, sequence.tokens.end());
  progress.logprobs = sequence.logprobs;
  return progress;
}

// The size of a snapshot of its cache.
int64_t SnapshotBytes(const Sequence& sequence) {
  if (!sequence.swapped.empty()) return sequence.swapped.snapshot().size_bytes;
  return sequence.num_computed() > 0 ? sequence.lease.snapshot_bytes() : 0;
}

CacheSnapshot SnapshotOf(const Sequence& sequence, StepCopies* copies) {
  if (!sequence.swapped.empty()) return copies->Duplicate(sequence.swapped.snapshot());
  return sequence.num_computed() > 0 ? copies->SnapshotOf(sequence.lease) : CacheSnapshot();
}

}  // namespace

void Saver::Ask(Sequence* sequence) {
  if (!Saves(*sequence) || sequence->save_due) return;
  sequence->save_due = true;
  due_.push_back(sequence);
}

void Saver::OnToken(Sequence* sequence) {
  const int64_t every = sequence->request.autosave_tokens;
  if (every > 0 && sequence->num_generated() % every == 0) Ask(sequence);
}

void Saver::OnEnd(FinishReason reason, Sequence* sequence) {
  if (!Saves(*sequence)) return;
  if (std::exchange(sequence->save_due, false)) std::erase(due_, sequence);
  SavedRequest saved = {.key = sequence->request.key, .last = true};
  if (reason != FinishReason::kError) {
    saved.progress = ProgressOf(*sequence);
    // A request that was cancelled, or missed its deadline, may resume.
    if (reason == FinishReason::kStop || reason == FinishReason::kLength) saved.progress->finish = reason;
    const bool stopped = reason == FinishReason::kStop && sequence->num_generated() > 0;
    if (stopped && sequence->StopsAt(sequence->tokens.back())) saved.progress->stop_token = sequence->tokens.back();
    if (sink_->ready() && copies_->MayCopy(SnapshotBytes(*sequence))) {
      saved.progress->snapshot = SnapshotOf(*sequence, copies_);
    }
  }
  sink_->Take(std::move(saved));
}

// The first that has no room ends it, and is the first of the next time. So a sequence that soon asks again goes behind
// all that wait.
void Saver::HandOver() {
  due_.erase(due_.begin(), std::find_if_not(due_.begin(), due_.end(), [this](Sequence* s) { return Save(s); }));
}

bool Saver::Save(Sequence* sequence) {
  const int64_t bytes = SnapshotBytes(*sequence);
  const bool ever = copies_->MayEverCopy(bytes);
  if (!sink_->ready() || (ever && !copies_->MayCopy(bytes))) return false;
  SavedRequest saved = {.key = sequence->request.key, .progress = ProgressOf(*sequence)};
  if (ever) saved.progress->snapshot = SnapshotOf(*sequence, copies_);
  sink_->Take(std::move(saved));
  sequence->save_due = false;
  return true;
}

}  // namespace berth
