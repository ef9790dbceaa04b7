#include "scheduler/suspender.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace berth {
namespace {

// What an older span keeps of its weight with each new one: the last ten or so count.
constexpr double kKept = 0.9;

}  // namespace

SuspendedCache::SuspendedCache(CacheImage image, int64_t* tier_bytes)
    : image_(std::move(image)), tier_bytes_(tier_bytes) {
  if (tier_bytes_ != nullptr) *tier_bytes_ += image_.size_bytes;
}

SuspendedCache::SuspendedCache(SuspendedCache&& other) noexcept { *this = std::move(other); }

SuspendedCache& SuspendedCache::operator=(SuspendedCache&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  image_ = std::exchange(other.image_, {});
  tier_bytes_ = std::exchange(other.tier_bytes_, nullptr);
  return *this;
}

void SuspendedCache::Drop() {
  if (tier_bytes_ != nullptr) *tier_bytes_ -= image_.size_bytes;
  tier_bytes_ = nullptr;
  image_ = {};
}

void RunningRate::Add(int64_t amount, absl::Duration time) {
  amount_ = amount_ * kKept + static_cast<double>(amount);
  // The clock may be set back.
  seconds_ = seconds_ * kKept + std::max(0.0, absl::ToDoubleSeconds(time));
}

absl::Duration RunningRate::TimeFor(int64_t amount) const {
  return amount_ > 0 ? absl::Seconds(seconds_ / amount_ * static_cast<double>(amount)) : absl::ZeroDuration();
}

void Suspender::BeginStep() {
  left_bytes_ = options_.step_bytes;
  copy_time_ = absl::ZeroDuration();
}

SuspendedCache Suspender::Suspend(const SequenceLease& lease) {
  if (options_.host_tier_bytes == 0 || lease.num_tokens() == 0) return {};
  const int64_t bytes = lease.image_bytes();
  if (!MayCopy(bytes) || bytes > options_.host_tier_bytes - tier_bytes_) return {};
  if (copies_.TimeFor(2 * bytes) > prefill_.TimeFor(lease.num_tokens() + lease.num_cross_tokens())) return {};
  return SuspendedCache(Save(lease), &tier_bytes_);
}

bool Suspender::WorthRestoring(const CacheImage& image, int64_t num_tokens) const {
  return num_tokens > 0 && copies_.TimeFor(image.size_bytes) <= prefill_.TimeFor(num_tokens);
}

absl::StatusOr<SequenceLease> Suspender::Restore(Cache* cache, const CacheImage& image) {
  const absl::Time start = options_.copy_clock();
  absl::StatusOr<SequenceLease> lease = cache->Restore(image);
  if (lease.ok()) OnCopy(image.size_bytes, start);
  return lease;
}

CacheImage Suspender::Save(const SequenceLease& lease) {
  const absl::Time start = options_.copy_clock();
  CacheImage image = lease.Save();
  OnCopy(image.size_bytes, start);
  return image;
}

CacheImage Suspender::Copy(const CacheImage& image) {
  CacheImage copy = {.num_tokens = image.num_tokens,
                     .num_cross_tokens = image.num_cross_tokens,
                     .groups = image.groups,
                     .bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(image.size_bytes)),
                     .size_bytes = image.size_bytes};
  if (image.size_bytes > 0) std::memcpy(copy.bytes.get(), image.bytes.get(), static_cast<size_t>(image.size_bytes));
  left_bytes_ -= image.size_bytes;
  return copy;
}

void Suspender::OnCopy(int64_t size_bytes, absl::Time start) {
  const absl::Duration time = options_.copy_clock() - start;
  copies_.Add(size_bytes, time);
  copy_time_ += time;
  left_bytes_ -= size_bytes;
}

}  // namespace berth
