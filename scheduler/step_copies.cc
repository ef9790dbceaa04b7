#include "scheduler/step_copies.h"

#include <cstring>
#include <memory>

namespace berth {

void StepCopies::BeginStep() {
  left_bytes_ = options_.copy_bytes_per_step;
  time_at_once_ = absl::ZeroDuration();
}

void StepCopies::StartIn(const CacheImage& image, int64_t from, int64_t to, const SequenceLease& lease) {
  lease.Locate(image, from, to, &copier_.in());
  left_bytes_ -= to - from;
}

void StepCopies::StartOut(const SequenceLease& lease, int64_t from, int64_t to, CacheImage* image) {
  lease.LocateSaved(from, to, image, &copier_.out());
  left_bytes_ -= to - from;
}

bool StepCopies::StartPrefixOut(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                                CacheImage* image) {
  if (!cache_->LocatePrefix(salt, tokens, from, to, image, &copier_.out())) return false;
  left_bytes_ -= to - from;
  return true;
}

Copier::Done StepCopies::Finish() {
  const Copier::Done done = copier_.Finish();
  if (done.in_bytes + done.out_bytes > 0) cost_->OnCopy(done.in_bytes + done.out_bytes, done.time);
  return done;
}

void StepCopies::CopyIn(const CacheImage& image, int64_t from, int64_t to, SequenceLease* lease) {
  const absl::Time start = options_.copy_clock();
  lease->Load(image, from, to);
  OnCopyAtOnce(to - from, start);
}

void StepCopies::CopyOut(const SequenceLease& lease, int64_t from, int64_t to, CacheImage* image) {
  const absl::Time start = options_.copy_clock();
  lease.Save(from, to, image);
  OnCopyAtOnce(to - from, start);
}

bool StepCopies::CopyPrefixOut(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                               CacheImage* image) {
  const absl::Time start = options_.copy_clock();
  if (!cache_->ReadPrefix(salt, tokens, from, to, image)) return false;
  OnCopyAtOnce(to - from, start);
  return true;
}

CacheImage StepCopies::ImageOf(const SequenceLease& lease) {
  CacheImage image = lease.NewImage();
  CopyOut(lease, 0, image.size_bytes, &image);
  return image;
}

CacheImage StepCopies::Duplicate(const CacheImage& image) {
  CacheImage copy = {.num_tokens = image.num_tokens,
                     .num_cross_tokens = image.num_cross_tokens,
                     .groups = image.groups,
                     .bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(image.size_bytes)),
                     .size_bytes = image.size_bytes};
  if (image.size_bytes > 0) std::memcpy(copy.bytes.get(), image.bytes.get(), static_cast<size_t>(image.size_bytes));
  left_bytes_ -= image.size_bytes;
  return copy;
}

void StepCopies::OnCopyAtOnce(int64_t size_bytes, absl::Time start) {
  const absl::Duration time = options_.copy_clock() - start;
  cost_->OnCopy(size_bytes, time);
  time_at_once_ += time;
  left_bytes_ -= size_bytes;
}

}  // namespace berth
