// What becomes of the cache of a sequence that gives way, the bytes of the host tier, and the budget of all copies
// between the arena and host memory. Engine thread only.
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
// A step's copies are at most `copy_bytes_per_step`. All but sessions' saves are made beside steps (Copier), as many as
// it takes: the sequence that comes back waits, and so does who needs the room of one that gives way, while the other
// rows run. A save is made between two steps, and leaves out a cache that is larger than a step's budget.
#ifndef BERTH_SCHEDULER_SUSPENDER_H_
#define BERTH_SCHEDULER_SUSPENDER_H_

#include <algorithm>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/cache.h"
#include "cache/image.h"
#include "cache/lease.h"
#include "cache/storage.h"
#include "scheduler/copier.h"

namespace berth {

// The bytes of the host tier. Prefixes (scheduler/prefix_tier.h) take what sequences leave them.
struct HostTier {
  int64_t limit_bytes = 0;     // 0: there is no tier, and only resumed sequences hold bytes
  int64_t sequence_bytes = 0;  // caches of sequences that gave way, or were resumed and wait
  int64_t prefix_bytes = 0;

  int64_t free_bytes() const { return std::max<int64_t>(0, limit_bytes - sequence_bytes - prefix_bytes); }
};

// A cache in host memory. Gives its bytes back to the tier when it goes; move-only.
class SuspendedCache {
 public:
  SuspendedCache() = default;
  // `tier_bytes` counts the tier's. Must outlive this.
  SuspendedCache(CacheImage image, int64_t* tier_bytes);
  ~SuspendedCache() { Drop(); }
  SuspendedCache(SuspendedCache&& other) noexcept;
  SuspendedCache& operator=(SuspendedCache&& other) noexcept;

  bool empty() const { return image_.empty(); }
  const CacheImage& image() const { return image_; }
  CacheImage* mutable_image() { return &image_; }
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
    int64_t host_tier_bytes = 0;  // what suspended caches may take together; 0: every sequence is recomputed
    int64_t copy_bytes_per_step = 256 << 20;  // copied at most for one step, sessions' saves included
    bool beside_steps = false;  // Start's copies have a thread of their own; else they come before the step
    absl::Time (*copy_clock)() = absl::Now;  // tests give one that stands still: then suspending costs nothing
  };

  // `storage` must outlive the suspender.
  Suspender(const Options& options, ArenaStorage* storage)
      : options_(options),
        tier_{.limit_bytes = options.host_tier_bytes},
        left_bytes_(options.copy_bytes_per_step),
        copier_(storage, options.beside_steps, options.copy_clock) {}
  Suspender(const Suspender&) = delete;
  Suspender& operator=(const Suspender&) = delete;

  // Before a step is planned: the budget is whole again.
  void BeginStep();
  // A step that mostly prefilled computed `num_tokens` tokens in `time`, copies before it included.
  void OnPrefill(int64_t num_tokens, absl::Duration time) { prefill_.Add(num_tokens, time - copy_time_); }

  // Whether suspending the cache of `lease` is possible, given the room, and the cheaper action.
  bool ShallSuspend(const SequenceLease& lease) const;
  // The room for it, still to be filled. REQUIRES: ShallSuspend, and the tier has the room.
  SuspendedCache NewSuspended(const SequenceLease& lease);
  // A cache that came with a resumed sequence: counts like a suspended one. It is there already, so it is not refused
  // where there is no tier; where there is one that has no room for it, nothing is kept.
  SuspendedCache Hold(CacheImage image);

  // Whether copying so many bytes costs no more than computing `num_tokens` tokens.
  bool WorthCopying(int64_t size_bytes, int64_t num_tokens, absl::Duration more = absl::ZeroDuration()) const;
  // What the step's budget has left, and whether that, or any step's, allows for copying so much.
  int64_t left_bytes() const { return left_bytes_; }
  bool MayCopy(int64_t size_bytes) const { return size_bytes <= left_bytes_; }
  bool MayEverCopy(int64_t size_bytes) const { return size_bytes <= options_.copy_bytes_per_step; }

  // Copies beside the step that follows, taken from its budget: SequenceLease::Load, Save and Cache::ReadPrefix of
  // bytes [from, to), each at most once for a step and in this order, when nothing changes in the cache any more until
  // FinishCopies. That says how many bytes came in and went out before the step ended.
  void StartLoad(const CacheImage& image, int64_t from, int64_t to, const SequenceLease& lease);
  void StartSave(const SequenceLease& lease, int64_t from, int64_t to, CacheImage* image);
  bool StartReadPrefix(Cache* cache, absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                       CacheImage* image);
  void StartCopies() { copier_.Start(); }
  Copier::Done FinishCopies();

  // Copies at once, measured and taken from the step's budget: the same, and a whole cache. `to` may be past what the
  // budget allows where nothing runs that would wait.
  void Load(const CacheImage& image, int64_t from, int64_t to, SequenceLease* lease);
  void Save(const SequenceLease& lease, int64_t from, int64_t to, CacheImage* image);
  bool ReadPrefix(Cache* cache, absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                  CacheImage* image);
  CacheImage Save(const SequenceLease& lease);
  // A copy of `image`, from the same budget. REQUIRES: MayCopy.
  CacheImage Copy(const CacheImage& image);

  HostTier& tier() { return tier_; }
  const HostTier& tier() const { return tier_; }

 private:
  void OnCopy(int64_t size_bytes, absl::Time start);

  const Options options_;
  HostTier tier_;
  int64_t left_bytes_;        // of the step's budget
  absl::Duration copy_time_;  // since BeginStep
  RunningRate copies_;        // bytes
  RunningRate prefill_;       // tokens
  Copier copier_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_SUSPENDER_H_
