#include "scheduler/host_tier.h"

#include <utility>

namespace berth {

SwappedCache::SwappedCache(CacheImage image, int64_t* tier_bytes) : image_(std::move(image)), tier_bytes_(tier_bytes) {
  *tier_bytes_ += image_.size_bytes;
}

SwappedCache::SwappedCache(SwappedCache&& other) noexcept { *this = std::move(other); }

SwappedCache& SwappedCache::operator=(SwappedCache&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  image_ = std::exchange(other.image_, {});
  tier_bytes_ = std::exchange(other.tier_bytes_, nullptr);
  return *this;
}

void SwappedCache::Drop() {
  if (tier_bytes_ != nullptr) *tier_bytes_ -= image_.size_bytes;
  tier_bytes_ = nullptr;
  image_ = {};
}

}  // namespace berth
