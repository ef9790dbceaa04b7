// Moves caches between the arena and the tiers below it, in host memory and on disk. Owns the host tier, the prefix
// tier, the copies and the measurements of their cost. The scheduler uses only this class. Engine thread only.
//
// A preempted sequence is either *swapped out*, so its cache waits in host memory, or computed again later, whichever
// is cheaper (CopyCost). What the prefix index still holds by then costs nothing either way. A waiting sequence is
// *swapped in*: from its own snapshot, or from a prefix that others left (PrefixTier).
//
// There is no third way that keeps the recurrent state and computes keys and values again. The keys at position p of
// layer l follow from the layers below at every position up to p. Computing them runs all tokens through all layers,
// and gives the state too.
//
// One sequence at a time is on its way out, and one on its way in. Both copies run beside steps, over as many steps as
// they take. Running sequences continue meanwhile. Only those that need the room of the cache on its way out have to
// wait.
//
// Invariants:
//   - the sequence on its way out, or in, is waiting and holds no lease: the lease is here;
//   - HostTier::sequence_bytes is the size of all SwappedCaches.
#ifndef BERTH_SCHEDULER_TIERS_SWAP_MANAGER_H_
#define BERTH_SCHEDULER_TIERS_SWAP_MANAGER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache/cache.h"
#include "cache/lease.h"
#include "cache/snapshot.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/sequence.h"
#include "scheduler/tiers/copy_cost.h"
#include "scheduler/tiers/host_tier.h"
#include "scheduler/tiers/prefix_sharing.h"
#include "scheduler/tiers/prefix_tier.h"
#include "scheduler/tiers/step_copies.h"

namespace berth {

class SwapManager {
 public:
  // The pointers must outlive this.
  SwapManager(const SchedulerOptions& options, Cache* cache, const PrefixSharing* sharing);
  SwapManager(const SwapManager&) = delete;
  SwapManager& operator=(const SwapManager&) = delete;

  // Begins a step, before it is planned. `next` is the first waiting sequence, or null: prefixes are offloaded before
  // it takes their room. If nothing runs, copies may delay the step.
  void BeginStep(absl::Time now, const Sequence* next, bool nothing_runs);
  // Starts the copies that run beside the planned step. REQUIRES: nothing changes in the cache until FinishCopies.
  void StartCopies(absl::Time now, const Sequence* next);
  // Ends them when the step is done. Returns the sequence whose cache is now in host memory as a whole; null: none.
  const Sequence* FinishCopies(absl::Time now);
  // A step that mostly prefilled computed `num_tokens` in `time`, copies before it included.
  void OnPrefill(int64_t num_tokens, absl::Duration time) {
    cost_.OnPrefill(num_tokens, time - copies_.time_at_once());
  }

  // Begins to swap out the cache of a preempted sequence, and takes its lease. False, and nothing is done: there is no
  // room for it, or computing it again is cheaper. REQUIRES: !swapping_out().
  bool SwapOut(Sequence* sequence);
  // The sequence on its way out; null: none.
  const Sequence* swapping_out() const { return out_.sequence; }
  // Copies what is left of it at once. Returns it. REQUIRES: swapping_out().
  const Sequence* FinishSwapOut();
  // Gives it its lease back, if that `fits`. REQUIRES: swapping_out().
  using Fits = absl::FunctionRef<bool(const SequenceLease&)>;
  bool CancelSwapOut(Fits fits);

  enum class SwapInResult {
    kNothing,  // nothing is worth bringing back; the sequence keeps its lease and what that shares
    kWaits,    // the sequence has to wait for a copy, for the disk or for room, and has no lease
    kNoRoom,   // as kWaits, but what it shared is at least half of the copy, and may fit
    kTaken,    // its lease holds what came back
  };
  // Brings back what host memory or the disk has of a waiting sequence's cache, if that costs less than computing it.
  // REQUIRES: the sequence holds a new lease, after PrefixSharing::Adopt.
  SwapInResult SwapIn(Sequence* sequence, absl::Time now, bool nothing_runs, Fits fits);
  // Gives up the swap-in that is under way, of this sequence or of any, with its room. False: there is none.
  bool CancelSwapIn(const Sequence* of = nullptr);
  // Whether the last SwapIn of this step waits for the disk.
  bool awaits_disk() const { return awaits_disk_; }

  // Keeps the snapshot that came with a resumed sequence, if there is room. It is in host memory already, so it is also
  // kept where there is no tier: then such snapshots take as much memory as the arena at most.
  void KeepResumed(CacheSnapshot snapshot, Sequence* sequence);

  // The sequence is about to end: drops what is on its way, and queues what it leaves in the index if it is `complete`.
  void OnEnd(const Sequence& sequence, bool complete, absl::Time now);

  // Drops the prefixes of `salt`, or all, from host memory and the disk; see PrefixTier. REQUIRES: between steps.
  FreedBytes DropPrefixes(std::optional<absl::string_view> salt);
  void CallWhenGone(std::function<void(const absl::Status&)> done) { prefixes_.CallWhenGone(std::move(done)); }

  // Does the work that is due while there is no sequence. NextIdleWork returns when more is due.
  void RunIdleWork(absl::Time now) { BeginStep(now, /*next=*/nullptr, /*nothing_runs=*/true); }
  absl::Time NextIdleWork(absl::Time now) const { return prefixes_.NextIdleWork(now); }
  // Moves what the arena still holds down to the disk, if there is one. REQUIRES: there is no sequence.
  void SaveAll(absl::Time now, absl::FunctionRef<void(StepPhase)> enter) { prefixes_.OffloadAll(now, enter); }

  StepCopies& copies() { return copies_; }
  const HostTier& host_tier() const { return host_; }
  const PrefixTier& prefix_tier() const { return prefixes_; }

 private:
  // A sequence's cache on its way to host memory.
  struct Outgoing {
    Sequence* sequence = nullptr;  // null: there is none
    SequenceLease lease;
    SwappedCache cache;
    int64_t done_bytes = 0;
    int64_t due_bytes = 0;  // to be copied by the end of the planned step

    int64_t size_bytes() const { return cache.snapshot().size_bytes; }
  };
  // A cache on its way back to the arena. Not the sequence's yet.
  struct Incoming {
    const Sequence* sequence = nullptr;  // null: there is none
    const CacheSnapshot* snapshot = nullptr;
    PrefixTier::Entry* entry = nullptr;  // pinned; null: the snapshot is the sequence's own
    SequenceLease lease;
    int64_t size_bytes = 0;
    int64_t done_bytes = 0;
    int64_t due_bytes = 0;  // to be copied by the end of the planned step
  };

  bool ShouldSwapOut(const SequenceLease& lease) const;
  SwapInResult SwapInPrefix(Sequence* sequence, absl::Time now, bool nothing_runs, Fits fits);
  // Continues to bring back the first `num_tokens` tokens' cache of `snapshot`, which `entry` owns, or the sequence if
  // that is null. kTaken: the sequence's lease holds it.
  SwapInResult CopyIn(Sequence* sequence, const CacheSnapshot& snapshot, PrefixTier::Entry* entry, int64_t num_tokens,
                      bool nothing_runs, Fits fits);
  // Reserves the room for that.
  void Reserve(const Sequence& sequence, const CacheSnapshot& snapshot, PrefixTier::Entry* entry, int64_t num_tokens);
  const Sequence* EndSwapOut();
  // The bytes of the arena that `next` will take.
  int64_t NeededBytes(const Sequence* next) const;

  Cache* const cache_;
  const PrefixSharing* const sharing_;
  HostTier host_;
  CopyCost cost_;
  StepCopies copies_;
  PrefixTier prefixes_;
  Outgoing out_;
  Incoming in_;
  bool awaits_disk_ = false;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_SWAP_MANAGER_H_
