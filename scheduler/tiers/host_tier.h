// Host memory below the arena: the account of its bytes, and one sequence's cache in it. Engine thread only.
#ifndef BERTH_SCHEDULER_TIERS_HOST_TIER_H_
#define BERTH_SCHEDULER_TIERS_HOST_TIER_H_

#include <algorithm>
#include <cstdint>

#include "cache/snapshot.h"

namespace berth {

// The bytes of the host tier. Sequences come first; prefixes (scheduler/tiers/prefix_tier.h) use what they leave.
struct HostTier {
  int64_t limit_bytes = 0;     // 0: there is no tier, and only resumed sequences hold bytes
  int64_t sequence_bytes = 0;  // caches of swapped-out sequences, and of resumed ones that wait
  int64_t prefix_bytes = 0;

  int64_t free_bytes() const { return std::max<int64_t>(0, limit_bytes - sequence_bytes - prefix_bytes); }
};

// A sequence's cache in host memory. Takes its bytes off the account when it is dropped or destroyed. Move-only.
class SwappedCache {
 public:
  SwappedCache() = default;
  // Adds the snapshot's size to `*tier_bytes`, which must outlive this.
  SwappedCache(CacheSnapshot snapshot, int64_t* tier_bytes);
  ~SwappedCache() { Drop(); }
  SwappedCache(SwappedCache&& other) noexcept;
  SwappedCache& operator=(SwappedCache&& other) noexcept;

  bool empty() const { return snapshot_.empty(); }
  const CacheSnapshot& snapshot() const { return snapshot_; }
  CacheSnapshot* mutable_snapshot() { return &snapshot_; }
  void Drop();

 private:
  CacheSnapshot snapshot_;
  int64_t* tier_bytes_ = nullptr;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_HOST_TIER_H_
