#include "scheduler/tiers/step_copies.h"

#include <cstring>
#include <memory>

namespace berth {

void StepCopies::BeginStep() {
  left_bytes_ = options_.copy_bytes_per_step;
  time_at_once_ = absl::ZeroDuration();
}

void StepCopies::StartIn(const CacheSnapshot& snapshot, int64_t from, int64_t to, const SequenceLease& lease) {
  lease.Locate(snapshot, from, to, &copier_.in());
  left_bytes_ -= to - from;
}

void StepCopies::StartOut(const SequenceLease& lease, int64_t from, int64_t to, CacheSnapshot* snapshot) {
  lease.LocateSaved(from, to, snapshot, &copier_.out());
  left_bytes_ -= to - from;
}

bool StepCopies::StartPrefixOut(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                                CacheSnapshot* snapshot) {
  if (!cache_->LocatePrefix(salt, tokens, from, to, snapshot, &copier_.out())) return false;
  left_bytes_ -= to - from;
  return true;
}

Copier::Done StepCopies::Finish() {
  const Copier::Done done = copier_.Finish();
  if (done.in_bytes + done.out_bytes > 0) cost_->OnCopy(done.in_bytes + done.out_bytes, done.time);
  return done;
}

void StepCopies::CopyIn(const CacheSnapshot& snapshot, int64_t from, int64_t to, SequenceLease* lease) {
  const absl::Time start = options_.copy_clock();
  lease->Load(snapshot, from, to);
  OnCopyAtOnce(to - from, start);
}

void StepCopies::CopyOut(const SequenceLease& lease, int64_t from, int64_t to, CacheSnapshot* snapshot) {
  const absl::Time start = options_.copy_clock();
  lease.Save(from, to, snapshot);
  OnCopyAtOnce(to - from, start);
}

bool StepCopies::CopyPrefixOut(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                               CacheSnapshot* snapshot) {
  const absl::Time start = options_.copy_clock();
  if (!cache_->ReadPrefix(salt, tokens, from, to, snapshot)) return false;
  OnCopyAtOnce(to - from, start);
  return true;
}

CacheSnapshot StepCopies::SnapshotOf(const SequenceLease& lease) {
  CacheSnapshot snapshot = lease.NewSnapshot();
  CopyOut(lease, 0, snapshot.size_bytes, &snapshot);
  return snapshot;
}

CacheSnapshot StepCopies::Duplicate(const CacheSnapshot& snapshot) {
  CacheSnapshot copy = {.num_tokens = snapshot.num_tokens,
                        .num_cross_tokens = snapshot.num_cross_tokens,
                        .groups = snapshot.groups,
                        .bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(snapshot.size_bytes)),
                        .size_bytes = snapshot.size_bytes};
  if (snapshot.size_bytes > 0)
    std::memcpy(copy.bytes.get(), snapshot.bytes.get(), static_cast<size_t>(snapshot.size_bytes));
  left_bytes_ -= snapshot.size_bytes;
  return copy;
}

void StepCopies::OnCopyAtOnce(int64_t size_bytes, absl::Time start) {
  const absl::Duration time = options_.copy_clock() - start;
  cost_->OnCopy(size_bytes, time);
  time_at_once_ += time;
  left_bytes_ -= size_bytes;
}

}  // namespace berth
