#include "scheduler/tiers/host_tier.h"

#include <utility>

namespace berth {

SwappedCache::SwappedCache(CacheSnapshot snapshot, int64_t* tier_bytes)
    : snapshot_(std::move(snapshot)), tier_bytes_(tier_bytes) {
  *tier_bytes_ += snapshot_.size_bytes;
}

SwappedCache::SwappedCache(SwappedCache&& other) noexcept { *this = std::move(other); }

SwappedCache& SwappedCache::operator=(SwappedCache&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  snapshot_ = std::exchange(other.snapshot_, {});
  tier_bytes_ = std::exchange(other.tier_bytes_, nullptr);
  return *this;
}

void SwappedCache::Drop() {
  if (tier_bytes_ != nullptr) *tier_bytes_ -= snapshot_.size_bytes;
  tier_bytes_ = nullptr;
  snapshot_ = {};
}

}  // namespace berth
