// What the scheduler does with the tiers below the arena: brings suspended caches and prefixes back, and has what
// sequences leave behind saved.
#include <algorithm>

#include "absl/base/internal/raw_logging.h"
#include "scheduler/scheduler.h"

namespace berth {

void Scheduler::Rest(absl::Time now) {
  suspender_.BeginStep();
  prefixes_.Poll(now);
  prefixes_.Save(now, /*needed_bytes=*/0);
}

int64_t Scheduler::NextBytes() const {
  if (waiting_.empty()) return 0;
  const Sequence& next = *waiting_.front();
  return ImageLayout(cache_->plan(), next.num_tokens() + 1, next.num_encoder_tokens()).size_bytes;
}

Scheduler::FromTier Scheduler::TakeFromTiers(Sequence* sequence, int64_t length, const Forks& forks, int64_t promised) {
  const CacheImage& image = sequence->suspended.image();
  if (!suspender_.WorthCopying(image.size_bytes, image.num_tokens - sequence->num_computed())) {
    return TakePrefix(sequence, length, forks, promised);
  }
  const auto fits = [&](const SequenceLease& lease) {
    return cache_->CanFit(lease, length, options_.prefill_chunk_tokens, promised, forks);
  };
  if (!Restore(sequence, image, /*entry=*/nullptr, image.num_tokens, fits)) return FromTier::kWaits;
  sequence->hit = PrefixHit();
  if (MayShare(*sequence)) sequence->lease.Share(sequence->request.cache_salt);
  return FromTier::kTaken;
}

Scheduler::FromTier Scheduler::TakePrefix(Sequence* sequence, int64_t length, const Forks& forks, int64_t promised) {
  absl::Span<const int32_t> tokens = ShareableTokens(*sequence);
  if (tokens.empty()) return FromTier::kNothing;
  tokens.remove_suffix(1);  // there is always a token to compute
  const PrefixTier::Hit hit = prefixes_.Find(sequence->request.cache_salt, tokens, ShareMultiple(), plan_start_);
  const int64_t gain = hit.num_tokens - sequence->num_computed();
  if (hit.entry == nullptr || !prefixes_.WorthFetching(hit, gain)) return FromTier::kNothing;
  const PrefixTier::Fetched fetched = prefixes_.Fetch(hit.entry);
  if (fetched == PrefixTier::Fetched::kNoRoom) return FromTier::kNothing;
  if (fetched == PrefixTier::Fetched::kComing) {
    awaits_disk_ = true;
    sequence->lease = SequenceLease();
    return FromTier::kWaits;
  }
  const auto fits = [&](const SequenceLease& lease) {
    return cache_->CanFit(lease, length, options_.prefill_chunk_tokens, promised, forks);
  };
  const CacheImage& image = prefixes_.Pin(hit.entry);
  const bool here = Restore(sequence, image, hit.entry, hit.num_tokens, fits);
  prefixes_.Unpin(hit.entry);
  if (!here) return FromTier::kWaits;
  sequence->hit = {.num_tokens = hit.num_tokens,
                   .matched_tokens = std::max(hit.num_tokens, sequence->hit.matched_tokens)};
  sequence->lease.Share(sequence->request.cache_salt);
  sequence->lease.Publish(sequence->tokens, /*checkpoint=*/true);
  prefixes_.OnRestored(gain);
  return FromTier::kTaken;
}

bool Scheduler::Restore(Sequence* sequence, const CacheImage& image, PrefixTier::Entry* entry, int64_t num_tokens,
                        absl::FunctionRef<bool(const SequenceLease&)> fits) {
  // What it shares has to go first, or its bytes would be spoken for.
  sequence->lease = cache_->NewLease(sequence->num_encoder_tokens());
  const bool goes_on =
      restoring_.sequence == sequence && restoring_.image == &image && restoring_.lease.num_tokens() == num_tokens;
  if (!goes_on) DropRestoring();
  const bool fit = fits(goes_on ? restoring_.lease : sequence->lease);
  sequence->lease = SequenceLease();
  if (!fit) {
    DropRestoring();
    return false;
  }
  if (!goes_on) {
    const CacheImage layout = entry != nullptr ? PrefixLayout(cache_->plan(), num_tokens)
                                               : ImageLayout(cache_->plan(), num_tokens, image.num_cross_tokens);
    absl::StatusOr<SequenceLease> lease = cache_->Reserve(layout);
    if (!lease.ok()) ABSL_RAW_LOG(FATAL, "CanFit said yes, but %s", lease.status().ToString().c_str());
    restoring_ = {.sequence = sequence,
                  .image = &image,
                  .entry = entry,
                  .lease = *std::move(lease),
                  .size_bytes = layout.size_bytes};
    if (entry != nullptr) prefixes_.Pin(entry);
  }
  const int64_t size = restoring_.size_bytes;
  const int64_t left = size - restoring_.done_bytes;
  if (left > 0 && !running_.empty()) {
    restoring_.due_bytes = restoring_.done_bytes + std::min(left, std::max<int64_t>(0, suspender_.left_bytes()));
    return false;
  }
  // Nobody waits for a copy where nobody runs.
  if (left > 0) suspender_.Load(image, restoring_.done_bytes, size, &restoring_.lease);
  sequence->lease = std::move(restoring_.lease);
  sequence->encoded = true;
  DropRestoring();
  return true;
}

void Scheduler::StartCopies(absl::Time now) {
  if (restoring_.due_bytes > restoring_.done_bytes) {
    suspender_.StartLoad(*restoring_.image, restoring_.done_bytes, restoring_.due_bytes, restoring_.lease);
  }
  const int64_t left = std::min(leaving_.size_bytes() - leaving_.done_bytes, suspender_.left_bytes());
  if (left > 0) {
    leaving_.due_bytes = leaving_.done_bytes + left;
    suspender_.StartSave(leaving_.lease, leaving_.done_bytes, leaving_.due_bytes, leaving_.cache.mutable_image());
  }
  prefixes_.StartSaving(now, NextBytes());
  suspender_.StartCopies();
}

void Scheduler::FinishCopies(absl::Time now) {
  const Copier::Done done = suspender_.FinishCopies();
  restoring_.done_bytes += done.in_bytes;
  const int64_t left = std::clamp<int64_t>(leaving_.due_bytes - leaving_.done_bytes, 0, done.out_bytes);
  leaving_.done_bytes += left;
  if (leaving_.sequence != nullptr && leaving_.done_bytes == leaving_.size_bytes()) EndLeaving();
  prefixes_.OnCopied(done.out_bytes - left, now);
}

void Scheduler::FinishLeaving() {
  suspender_.Save(leaving_.lease, leaving_.done_bytes, leaving_.size_bytes(), leaving_.cache.mutable_image());
  EndLeaving();
}

void Scheduler::EndLeaving() {
  Sequence& sequence = *leaving_.sequence;
  CountWaiting(sequence, -1);
  sequence.suspended = std::move(leaving_.cache);
  CountWaiting(sequence, +1);
  ++counts_.num_suspensions;
  leaving_ = Leaving();
}

bool Scheduler::TakeBack(Sequence* sequence, int64_t length, int64_t promised) {
  if (!cache_->CanFit(leaving_.lease, length, options_.prefill_chunk_tokens, promised)) return false;
  sequence->lease = std::move(leaving_.lease);
  sequence->encoded = true;
  leaving_ = Leaving();
  return true;
}

void Scheduler::DropRestoring() {
  if (restoring_.entry != nullptr) prefixes_.Unpin(restoring_.entry);
  restoring_ = Restoring();
}

void Scheduler::NotePrefixes(const Sequence& sequence, absl::Time now) {
  if (!sequence.lease.shares() || !MayShare(sequence)) return;
  const absl::Span<const int32_t> tokens = sequence.tokens;
  const int64_t computed = std::min(sequence.num_computed(), NumShareable(sequence));
  const auto note = [&](int64_t length) {
    if (length > 0 && length <= computed) prefixes_.Note(sequence.request.cache_salt, tokens.first(length), now);
  };
  if (options_.aligned_prefill_chunks) return note(computed - computed % options_.prefill_chunk_tokens);
  note(computed);
  if (cache_->plan().state_group() < 0) return;
  // States cannot be cropped: where the prompt left a known one, and where another may be going to leave this one.
  note(sequence.hit.matched_tokens);
  if (options_.state_checkpoint_tokens > 0) {
    note((sequence.prompt_length - 1) / options_.state_checkpoint_tokens * options_.state_checkpoint_tokens);
  }
}

}  // namespace berth
