// One swap-out and one swap-in at a time, each a small state machine whose copies run beside steps.
//
//   out:  SwapOut ---- takes the lease ----> copying ---- all is copied ----> Sequence::swapped; the lease goes
//                                              |
//                                              +-- CancelSwapOut: room came back first, the lease returns as it was
//
//   in:   SwapIn ---- it fits ----> reserved ----> copying ---- all is copied ----> Sequence::lease
//           ^                          |              |
//           +--------- CancelSwapIn: a running sequence needs the room, it no longer fits, or it is paused
//
// `done_bytes` counts what was copied. `due_bytes` is how far the planned step's copies are to come. The copier may
// come less far, since a step's end does not wait for it; the next step resumes there.
#include "scheduler/tiers/swap_manager.h"

#include <algorithm>
#include <utility>

#include "absl/base/internal/raw_logging.h"

namespace berth {

SwapManager::SwapManager(const SchedulerOptions& options, Cache* cache, const PrefixSharing* sharing)
    : cache_(cache),
      sharing_(sharing),
      host_{.limit_bytes = options.swap.host_tier_bytes},
      cost_(options.swap.always_copy),
      copies_(options.swap, cache, &cost_),
      prefixes_(options.prefixes, cache, &host_, &copies_, &cost_) {}

void SwapManager::BeginStep(absl::Time now, const Sequence* next, bool nothing_runs) {
  awaits_disk_ = false;
  copies_.BeginStep();
  prefixes_.Poll(now);
  if (nothing_runs) prefixes_.OffloadNow(now, NeededBytes(next));
}

void SwapManager::StartCopies(absl::Time now, const Sequence* next) {
  // The most urgent first: a sequence waits for what comes in, and others for the room of what goes out. No sequence
  // waits for a prefix.
  if (in_.due_bytes > in_.done_bytes) copies_.StartIn(*in_.snapshot, in_.done_bytes, in_.due_bytes, in_.lease);
  const int64_t out_bytes = std::min(out_.size_bytes() - out_.done_bytes, copies_.left_bytes());
  if (out_bytes > 0) {
    out_.due_bytes = out_.done_bytes + out_bytes;
    copies_.StartOut(out_.lease, out_.done_bytes, out_.due_bytes, out_.cache.mutable_snapshot());
  }
  prefixes_.StartOffload(now, NeededBytes(next));
  copies_.Start();
}

const Sequence* SwapManager::FinishCopies(absl::Time now) {
  const Copier::Done done = copies_.Finish();
  in_.done_bytes += done.in_bytes;
  // The first bytes that went out are the sequence's, the rest a prefix's.
  const int64_t out_bytes = std::clamp<int64_t>(out_.due_bytes - out_.done_bytes, 0, done.out_bytes);
  out_.done_bytes += out_bytes;
  const bool swapped_out = out_.sequence != nullptr && out_.done_bytes == out_.size_bytes();
  const Sequence* const sequence = swapped_out ? EndSwapOut() : nullptr;
  prefixes_.OnOffloaded(done.out_bytes - out_bytes, now);
  return sequence;
}

int64_t SwapManager::NeededBytes(const Sequence* next) const {
  if (next == nullptr || host_.limit_bytes == 0) return 0;
  return SnapshotLayout(cache_->plan(), next->num_tokens() + 1, next->num_encoder_tokens()).size_bytes;
}

bool SwapManager::ShouldSwapOut(const SequenceLease& lease) const {
  if (lease.num_tokens() == 0) return false;
  const int64_t bytes = lease.snapshot_bytes();
  // Out now, and in again later.
  return bytes <= host_.limit_bytes - host_.sequence_bytes &&
         cost_.IsWorthCopying(2 * bytes, lease.num_tokens() + lease.num_cross_tokens());
}

bool SwapManager::SwapOut(Sequence* sequence) {
  if (!ShouldSwapOut(sequence->lease) || !prefixes_.MakeRoom(sequence->lease.snapshot_bytes())) return false;
  out_.sequence = sequence;
  out_.cache = SwappedCache(sequence->lease.NewSnapshot(), &host_.sequence_bytes);
  out_.lease = std::move(sequence->lease);
  return true;
}

const Sequence* SwapManager::FinishSwapOut() {
  copies_.CopyOut(out_.lease, out_.done_bytes, out_.size_bytes(), out_.cache.mutable_snapshot());
  return EndSwapOut();
}

const Sequence* SwapManager::EndSwapOut() {
  Sequence* const sequence = out_.sequence;
  sequence->swapped = std::move(out_.cache);
  out_ = Outgoing();
  return sequence;
}

bool SwapManager::CancelSwapOut(Fits fits) {
  if (!fits(out_.lease)) return false;
  out_.sequence->lease = std::move(out_.lease);
  out_.sequence->encoded = true;
  out_ = Outgoing();
  return true;
}

// The sequence holds a new lease with what the prefix index shares. Tries, in this order:
//   1. its own snapshot, if copying that costs less than computing what the index lacks;
//   2. the longest prefix in the tiers, if that gains enough; from disk it first comes to host memory (kWaits).
// Otherwise the sequence keeps its lease and computes the rest.
//
// Both ways end in CopyIn, in every step until the copy is done:
//   - The first call reserves all units of the snapshot at once, so the copy cannot run out of room later.
//   - Each call sets `due_bytes`, what this step's copies may bring. StartCopies and FinishCopies move the bytes.
//   - The last call finds nothing left and gives the lease to the sequence.
//   - If no sequence runs, a copy delays none, and one call does all of this.
SwapManager::SwapInResult SwapManager::SwapIn(Sequence* sequence, absl::Time now, bool nothing_runs, Fits fits) {
  const CacheSnapshot& snapshot = sequence->swapped.snapshot();
  // What the index still holds of it need not be computed, so it counts for computing.
  if (!cost_.IsWorthCopying(snapshot.size_bytes, snapshot.num_tokens - sequence->num_computed())) {
    return SwapInPrefix(sequence, now, nothing_runs, fits);
  }
  const SwapInResult copied = CopyIn(sequence, snapshot, /*entry=*/nullptr, snapshot.num_tokens, nothing_runs, fits);
  if (copied != SwapInResult::kTaken) return copied;
  sequence->hit = PrefixHit();
  if (sharing_->MayShare(*sequence)) sequence->lease.Share(sequence->request.cache_salt);
  return SwapInResult::kTaken;
}

SwapManager::SwapInResult SwapManager::SwapInPrefix(Sequence* sequence, absl::Time now, bool nothing_runs, Fits fits) {
  absl::Span<const int32_t> tokens = sharing_->ShareableTokens(*sequence);
  if (tokens.empty()) return SwapInResult::kNothing;
  tokens.remove_suffix(1);  // there is always a token to compute
  const PrefixTier::Hit hit = prefixes_.Find(sequence->request.cache_salt, tokens, sharing_->multiple(), now);
  const int64_t gain = hit.num_tokens - sequence->num_computed();
  if (hit.entry == nullptr || !prefixes_.WorthFetching(hit, gain)) return SwapInResult::kNothing;
  const PrefixTier::Fetched fetched = prefixes_.Fetch(hit.entry);
  if (fetched == PrefixTier::Fetched::kNoRoom) return SwapInResult::kNothing;
  if (fetched == PrefixTier::Fetched::kComing) {
    awaits_disk_ = true;
    sequence->lease = SequenceLease();
    return SwapInResult::kWaits;
  }
  const CacheSnapshot& snapshot = prefixes_.Pin(hit.entry);
  const SwapInResult copied = CopyIn(sequence, snapshot, hit.entry, hit.num_tokens, nothing_runs, fits);
  prefixes_.Unpin(hit.entry);
  if (copied != SwapInResult::kTaken) return copied;
  sequence->hit = {.num_tokens = hit.num_tokens,
                   .matched_tokens = std::max(hit.num_tokens, sequence->hit.matched_tokens)};
  sequence->lease.Share(sequence->request.cache_salt);
  sequence->lease.Publish(sequence->tokens, /*checkpoint=*/true);
  prefixes_.OnRestored(gain);
  return SwapInResult::kTaken;
}

SwapManager::SwapInResult SwapManager::CopyIn(Sequence* sequence, const CacheSnapshot& snapshot,
                                              PrefixTier::Entry* entry, int64_t num_tokens, bool nothing_runs,
                                              Fits fits) {
  const bool shares_most = 2 * sequence->num_computed() >= num_tokens;
  // What the sequence shares has to go first: its bytes would count as taken.
  sequence->lease = cache_->NewLease(sequence->num_encoder_tokens());
  // A longer prefix may have come up since the last step; then the copy starts again.
  const bool resumes = in_.sequence == sequence && in_.snapshot == &snapshot && in_.lease.num_tokens() == num_tokens;
  if (!resumes) CancelSwapIn();
  const bool fit = fits(resumes ? in_.lease : sequence->lease);
  sequence->lease = SequenceLease();
  if (!fit) {
    CancelSwapIn();
    return shares_most ? SwapInResult::kNoRoom : SwapInResult::kWaits;
  }
  if (!resumes) Reserve(*sequence, snapshot, entry, num_tokens);
  const int64_t left = in_.size_bytes - in_.done_bytes;
  if (left > 0 && !nothing_runs) {
    in_.due_bytes = in_.done_bytes + std::min(left, std::max<int64_t>(0, copies_.left_bytes()));
    return SwapInResult::kWaits;
  }
  if (left > 0) copies_.CopyIn(snapshot, in_.done_bytes, in_.size_bytes, &in_.lease);
  sequence->lease = std::move(in_.lease);
  sequence->encoded = true;
  CancelSwapIn();
  return SwapInResult::kTaken;
}

void SwapManager::Reserve(const Sequence& sequence, const CacheSnapshot& snapshot, PrefixTier::Entry* entry,
                          int64_t num_tokens) {
  const CacheSnapshot layout = entry != nullptr ? PrefixLayout(cache_->plan(), num_tokens)
                                                : SnapshotLayout(cache_->plan(), num_tokens, snapshot.num_cross_tokens);
  absl::StatusOr<SequenceLease> lease = cache_->Reserve(layout);
  if (!lease.ok()) ABSL_RAW_LOG(FATAL, "what was admitted does not fit: %s", lease.status().ToString().c_str());
  in_ = {.sequence = &sequence,
         .snapshot = &snapshot,
         .entry = entry,
         .lease = *std::move(lease),
         .size_bytes = layout.size_bytes};
  if (entry != nullptr) prefixes_.Pin(entry);
}

bool SwapManager::CancelSwapIn(const Sequence* of) {
  if (in_.sequence == nullptr || (of != nullptr && in_.sequence != of)) return false;
  if (in_.entry != nullptr) prefixes_.Unpin(in_.entry);
  in_ = Incoming();
  return true;
}

FreedBytes SwapManager::DropPrefixes(std::optional<absl::string_view> salt) {
  // The sequence on its way in waits, and is then computed.
  if (in_.entry != nullptr && (!salt || in_.sequence->request.cache_salt == *salt)) CancelSwapIn();
  return prefixes_.DropAll(salt);
}

void SwapManager::KeepResumed(CacheSnapshot snapshot, Sequence* sequence) {
  prefixes_.MakeRoom(snapshot.size_bytes);
  // Without a tier, as much as the arena can take back at once.
  const int64_t free_bytes =
      host_.limit_bytes > 0 ? host_.free_bytes() : cache_->storage().size_bytes() - host_.sequence_bytes;
  if (snapshot.size_bytes > free_bytes) return;
  sequence->swapped = SwappedCache(std::move(snapshot), &host_.sequence_bytes);
}

void SwapManager::OnEnd(const Sequence& sequence, bool complete, absl::Time now) {
  CancelSwapIn(&sequence);
  if (out_.sequence == &sequence) out_ = Outgoing();
  if (!complete) return;
  const absl::Span<const int32_t> tokens = sequence.tokens;
  for (const int64_t length : sharing_->LengthsToKeep(sequence)) {
    prefixes_.EnqueueForOffload(sequence.request.cache_salt, tokens.first(length), now);
  }
}

}  // namespace berth
