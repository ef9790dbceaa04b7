#include "scheduler/policy/step_pacer.h"

#include <algorithm>
#include <limits>

namespace berth {
namespace {

// Prefill's least share of the target.
constexpr double kLeastShare = 0.25;
// Prefill's least share of a step's time, where decoding is thought to take longer than the whole step did.
constexpr double kLeastRest = 0.02;
// How fast estimates follow the measurements, per step. A token's time rises with the context, and streams feel a step
// that is too long.
constexpr double kRise = 0.5;
constexpr double kFall = 0.2;
// The margin moves by this share, times 99 when a step exceeds it. So one step in a hundred does.
constexpr double kMarginStep = 0.0005;
constexpr double kMaxMargin = 2;
// One step in this many, the probe, only decodes. It is over after one step, whatever that computed: while it lasts,
// nothing is admitted.
constexpr int64_t kProbeEvery = 64;
// Until a token's time is known.
constexpr int64_t kFirstTokens = 32;

absl::Duration Follow(absl::Duration estimate, absl::Duration measured) {
  if (estimate == absl::ZeroDuration()) return measured;
  return estimate + (measured > estimate ? kRise : kFall) * (measured - estimate);
}

}  // namespace

bool StepPacer::probes() const { return num_mixed_ + 1 >= kProbeEvery; }

absl::Duration StepPacer::TimeForPrefill() const {
  return std::max(kLeastShare * target_, target_ / margin_ - decode_time_);
}

int64_t StepPacer::MostPrefillTokens() const {
  if (target_ == absl::ZeroDuration()) return std::numeric_limits<int64_t>::max();
  if (probes()) return 0;
  if (token_time_ == absl::ZeroDuration()) return kFirstTokens;
  return std::max<int64_t>(1, static_cast<int64_t>(absl::FDivDuration(TimeForPrefill(), token_time_)));
}

void StepPacer::OnStep(absl::Duration time, int64_t prefill_tokens, int64_t decode_rows) {
  if (prefill_tokens == 0 || (probes() && decode_rows > 0)) {
    decode_time_ = probes() ? time : Follow(decode_time_, time);
    num_mixed_ = 0;
    return;
  }
  // A probe without rows that decode: the sequences had ended, or had no room.
  num_mixed_ = probes() ? 0 : num_mixed_ + (decode_rows > 0 ? 1 : 0);
  // A few tokens, as at the end of a prompt, say little of the next ones, unless the step was too long.
  if (2 * prefill_tokens < MostPrefillTokens() && time <= target_ + decode_time_) return;
  if (decode_rows > 0 && token_time_ > absl::ZeroDuration()) {
    const bool exceeds = time > margin_ * (decode_time_ + token_time_ * prefill_tokens);
    margin_ = std::clamp(margin_ * (exceeds ? 1 + 99 * kMarginStep : 1 - kMarginStep), 1.0, kMaxMargin);
  }
  absl::Duration rest = decode_rows > 0 ? time - decode_time_ : time;
  rest = std::max(rest, kLeastRest * time);
  token_time_ = Follow(token_time_, rest / prefill_tokens);
}

}  // namespace berth
