// The host tier: what becomes of the cache of a sequence that gives way, and the budget of all copies between the arena
// and host memory. Engine thread only.
//
// Two actions. Suspend: the cache is copied out, and back in when the sequence goes on. Recompute: its tokens run
// again, but for those that the prefix index still holds, where it leaves its blocks as they are, for nothing. The
// cheaper one is taken, by running averages of what copies and prefills really took. All tokens count as to be
// recomputed: which the index will still hold by then, nobody knows. Until a copy was measured, one is tried.
//
// There is no third action that keeps the recurrent state alone and recomputes keys and values: those of position p in
// layer l follow from the layers below at every position up to p, so computing them runs the prompt through all layers
// from position 0, and what that costs gives the state too. The state at the end saves no token of it. Where a model
// has states only, the state is all there is, and suspending copies nothing else.
//
// Copies happen between steps, and stall the rows that run: at most `step_bytes` are copied between two steps. A cache
// that is larger is never copied: it is recomputed.
#ifndef BERTH_SCHEDULER_SUSPENDER_H_
#define BERTH_SCHEDULER_SUSPENDER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/cache.h"
#include "cache/image.h"
#include "cache/lease.h"

namespace berth {

// A cache in host memory. Gives its bytes back to the tier when it goes; move-only.
class SuspendedCache {
 public:
  SuspendedCache() = default;
  // `tier_bytes` counts the tier's; null: it is in no tier. Must outlive this.
  SuspendedCache(CacheImage image, int64_t* tier_bytes);
  ~SuspendedCache() { Drop(); }
  SuspendedCache(SuspendedCache&& other) noexcept;
  SuspendedCache& operator=(SuspendedCache&& other) noexcept;

  bool empty() const { return image_.empty(); }
  const CacheImage& image() const { return image_; }
  void Drop();

 private:
  CacheImage image_;
  int64_t* tier_bytes_ = nullptr;
};

// Amount by time, the latest counting most. Weighted by time: many short spans do not outvote a long one.
class RunningRate {
 public:
  void Add(int64_t amount, absl::Duration time);
  // How long `amount` takes; 0 before the first Add.
  absl::Duration TimeFor(int64_t amount) const;

 private:
  double amount_ = 0;
  double seconds_ = 0;
};

class Suspender {
 public:
  struct Options {
    int64_t host_tier_bytes = 0;             // what suspended caches may take together; 0: every sequence is recomputed
    int64_t step_bytes = 256 << 20;          // copied at most between two steps, sessions' saves included
    absl::Time (*copy_clock)() = absl::Now;  // tests give one that stands still: then suspending costs nothing
  };

  explicit Suspender(const Options& options) : options_(options), left_bytes_(options.step_bytes) {}
  Suspender(const Suspender&) = delete;
  Suspender& operator=(const Suspender&) = delete;

  // Before a step is planned: the budget is whole again.
  void BeginStep();
  // A step that mostly prefilled computed `num_tokens` tokens in `time`, copies before it included.
  void OnPrefill(int64_t num_tokens, absl::Duration time) { prefill_.Add(num_tokens, time - copy_time_); }

  // The cache of `lease`, if suspending it is possible and the cheaper action; else nothing.
  SuspendedCache Suspend(const SequenceLease& lease);
  // Whether bringing `image` back costs less than computing `num_tokens` tokens.
  bool WorthRestoring(const CacheImage& image, int64_t num_tokens) const;
  // Whether the step's budget still allows for copying so many bytes, and whether any step's does.
  bool MayCopy(int64_t size_bytes) const { return size_bytes <= left_bytes_; }
  bool MayEverCopy(int64_t size_bytes) const { return size_bytes <= options_.step_bytes; }
  // Cache::Restore and SequenceLease::Save, measured, and taken from the step's budget. REQUIRES: MayCopy.
  absl::StatusOr<SequenceLease> Restore(Cache* cache, const CacheImage& image);
  CacheImage Save(const SequenceLease& lease);
  // A copy of `image`, from the same budget. REQUIRES: MayCopy.
  CacheImage Copy(const CacheImage& image);

  int64_t tier_bytes() const { return tier_bytes_; }

 private:
  void OnCopy(int64_t size_bytes, absl::Time start);

  const Options options_;
  int64_t left_bytes_;  // of the step's budget
  int64_t tier_bytes_ = 0;
  absl::Duration copy_time_;  // since BeginStep
  RunningRate copies_;        // bytes
  RunningRate prefill_;       // tokens
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_SUSPENDER_H_
