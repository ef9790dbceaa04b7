#include "scheduler/saver.h"

#include <utility>

namespace berth {
namespace {

// All but the cache.
Progress ProgressOf(const Sequence& sequence) {
  Progress progress;
  progress.tokens.assign(sequence.tokens.begin() + sequence.prompt_length, sequence.tokens.end());
  progress.logprobs = sequence.logprobs;
  return progress;
}

// What an image of its cache takes.
int64_t ImageBytes(const Sequence& sequence) {
  if (!sequence.suspended.empty()) return sequence.suspended.image().size_bytes;
  return sequence.num_computed() > 0 ? sequence.lease.image_bytes() : 0;
}

CacheImage ImageOf(const Sequence& sequence, Suspender* suspender) {
  if (!sequence.suspended.empty()) return suspender->Copy(sequence.suspended.image());
  return sequence.num_computed() > 0 ? suspender->Save(sequence.lease) : CacheImage();
}

}  // namespace

void Saver::Ask(Sequence* sequence) {
  if (!Saves(*sequence) || sequence->save_due) return;
  sequence->save_due = true;
  ++num_due_;
}

void Saver::OnToken(Sequence* sequence) {
  const int64_t every = sequence->request.autosave_tokens;
  if (every > 0 && sequence->num_generated() % every == 0) Ask(sequence);
}

void Saver::OnEnd(FinishReason reason, Sequence* sequence) {
  if (!Saves(*sequence)) return;
  if (std::exchange(sequence->save_due, false)) --num_due_;
  SavedRequest saved = {.key = sequence->request.key, .last = true};
  if (reason != FinishReason::kError) {
    saved.progress = ProgressOf(*sequence);
    // Whoever was cancelled, or came too late, may go on.
    if (reason == FinishReason::kStop || reason == FinishReason::kLength) saved.progress->finish = reason;
    const bool stopped = reason == FinishReason::kStop && sequence->num_generated() > 0;
    if (stopped && sequence->StopsAt(sequence->tokens.back())) saved.progress->stop_token = sequence->tokens.back();
    if (sink_->ready() && suspender_->MayCopy(ImageBytes(*sequence))) {
      saved.progress->image = ImageOf(*sequence, suspender_);
    }
  }
  sink_->Take(std::move(saved));
}

void Saver::HandOver(const std::vector<std::unique_ptr<Sequence>>& running,
                     const std::deque<std::unique_ptr<Sequence>>& waiting) {
  if (num_due_ == 0 || !sink_->ready()) return;
  for (const std::unique_ptr<Sequence>& sequence : running) {
    if (sequence->save_due && !Save(sequence.get())) return;
  }
  for (const std::unique_ptr<Sequence>& sequence : waiting) {
    if (sequence->save_due && !Save(sequence.get())) return;
  }
}

bool Saver::Save(Sequence* sequence) {
  const int64_t bytes = ImageBytes(*sequence);
  const bool ever = suspender_->MayEverCopy(bytes);
  if (!sink_->ready() || (ever && !suspender_->MayCopy(bytes))) return false;
  SavedRequest saved = {.key = sequence->request.key, .progress = ProgressOf(*sequence)};
  if (ever) saved.progress->image = ImageOf(*sequence, suspender_);
  sink_->Take(std::move(saved));
  sequence->save_due = false;
  --num_due_;
  return true;
}

}  // namespace berth
