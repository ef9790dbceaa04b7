// Copies caches between the arena and host memory, within one budget of bytes per step, and measures what that costs.
// Engine thread only.
//
// There are two ways. Copies that are *started* run beside the step, on the copier's thread, and come as far as the
// step lets them. The other copies happen *at once*, between two steps. They are for saves of sessions, and for times
// when nothing runs that would have to wait.
#ifndef BERTH_SCHEDULER_TIERS_STEP_COPIES_H_
#define BERTH_SCHEDULER_TIERS_STEP_COPIES_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/cache.h"
#include "cache/lease.h"
#include "cache/snapshot.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/tiers/copier.h"
#include "scheduler/tiers/copy_cost.h"

namespace berth {

class StepCopies {
 public:
  // The pointers must outlive this. `cost` learns from each copy.
  StepCopies(const SwapOptions& options, Cache* cache, CopyCost* cost)
      : options_(options),
        cache_(cache),
        cost_(cost),
        left_bytes_(options.copy_bytes_per_step),
        copier_(&cache->storage(), options.beside_steps, options.copy_clock) {}
  StepCopies(const StepCopies&) = delete;
  StepCopies& operator=(const StepCopies&) = delete;

  // Makes the budget whole again, before a step is planned.
  void BeginStep();
  // What the step's budget has left.
  int64_t left_bytes() const { return left_bytes_; }
  // Whether this step's budget, or any step's, allows for copying `size_bytes`.
  bool MayCopy(int64_t size_bytes) const { return size_bytes <= left_bytes_; }
  bool MayEverCopy(int64_t size_bytes) const { return size_bytes <= options_.copy_bytes_per_step; }
  // The time that copies at once have taken since BeginStep.
  absl::Duration time_at_once() const { return time_at_once_; }

  // Copies that run beside the next step, and are taken from its budget. Each copies bytes [from, to) of a snapshot: in
  // from `snapshot`, out to `snapshot`, or out of the prefix index. Call each at most once for a step, in this order.
  // REQUIRES: nothing changes in the cache until Finish.
  void StartIn(const CacheSnapshot& snapshot, int64_t from, int64_t to, const SequenceLease& lease);
  void StartOut(const SequenceLease& lease, int64_t from, int64_t to, CacheSnapshot* snapshot);
  // False: the index no longer holds the prefix.
  bool StartPrefixOut(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                      CacheSnapshot* snapshot);
  // Starts what was named above.
  void Start() { copier_.Start(); }
  // Ends those copies. Says how many bytes came in and went out before the step ended.
  Copier::Done Finish();

  // Copies at once, measures it, and takes the bytes from the budget. `to` may be past the budget where nothing runs.
  void CopyIn(const CacheSnapshot& snapshot, int64_t from, int64_t to, SequenceLease* lease);
  void CopyOut(const SequenceLease& lease, int64_t from, int64_t to, CacheSnapshot* snapshot);
  bool CopyPrefixOut(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                     CacheSnapshot* snapshot);
  // A snapshot of the whole lease.
  CacheSnapshot SnapshotOf(const SequenceLease& lease);
  // A second snapshot of the same bytes. REQUIRES: MayCopy.
  CacheSnapshot Duplicate(const CacheSnapshot& snapshot);

 private:
  void OnCopyAtOnce(int64_t size_bytes, absl::Time start);

  const SwapOptions options_;
  Cache* const cache_;
  CopyCost* const cost_;
  int64_t left_bytes_;
  absl::Duration time_at_once_;
  Copier copier_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_STEP_COPIES_H_
