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
  *tier_bytes_ += image_.size_bytes;
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
  left_bytes_ = options_.copy_bytes_per_step;
  copy_time_ = absl::ZeroDuration();
}

bool Suspender::ShallSuspend(const SequenceLease& lease) const {
  if (lease.num_tokens() == 0) return false;
  const int64_t bytes = lease.image_bytes();
  return bytes <= tier_.limit_bytes - tier_.sequence_bytes &&
         WorthCopying(2 * bytes, lease.num_tokens() + lease.num_cross_tokens());
}

SuspendedCache Suspender::NewSuspended(const SequenceLease& lease) {
  return SuspendedCache(lease.NewImage(), &tier_.sequence_bytes);
}

SuspendedCache Suspender::Hold(CacheImage image) {
  if (tier_.limit_bytes > 0 && image.size_bytes > tier_.free_bytes()) return {};
  return SuspendedCache(std::move(image), &tier_.sequence_bytes);
}

bool Suspender::WorthCopying(int64_t size_bytes, int64_t num_tokens, absl::Duration more) const {
  return num_tokens > 0 && copies_.TimeFor(size_bytes) + more <= prefill_.TimeFor(num_tokens);
}

void Suspender::StartLoad(const CacheImage& image, int64_t from, int64_t to, const SequenceLease& lease) {
  lease.Locate(image, from, to, &copier_.in());
  left_bytes_ -= to - from;
}

void Suspender::StartSave(const SequenceLease& lease, int64_t from, int64_t to, CacheImage* image) {
  lease.LocateSaved(from, to, image, &copier_.out());
  left_bytes_ -= to - from;
}

bool Suspender::StartReadPrefix(Cache* cache, absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from,
                                int64_t to, CacheImage* image) {
  if (!cache->LocatePrefix(salt, tokens, from, to, image, &copier_.out())) return false;
  left_bytes_ -= to - from;
  return true;
}

Copier::Done Suspender::FinishCopies() {
  const Copier::Done done = copier_.Finish();
  if (done.in_bytes + done.out_bytes > 0) copies_.Add(done.in_bytes + done.out_bytes, done.time);
  return done;
}

void Suspender::Load(const CacheImage& image, int64_t from, int64_t to, SequenceLease* lease) {
  const absl::Time start = options_.copy_clock();
  lease->Load(image, from, to);
  OnCopy(to - from, start);
}

bool Suspender::ReadPrefix(Cache* cache, absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from,
                           int64_t to, CacheImage* image) {
  const absl::Time start = options_.copy_clock();
  if (!cache->ReadPrefix(salt, tokens, from, to, image)) return false;
  OnCopy(to - from, start);
  return true;
}

void Suspender::Save(const SequenceLease& lease, int64_t from, int64_t to, CacheImage* image) {
  const absl::Time start = options_.copy_clock();
  lease.Save(from, to, image);
  OnCopy(to - from, start);
}

CacheImage Suspender::Save(const SequenceLease& lease) {
  CacheImage image = lease.NewImage();
  Save(lease, 0, image.size_bytes, &image);
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
