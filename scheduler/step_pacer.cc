#include "scheduler/step_pacer.h"

#include <algorithm>
#include <limits>

namespace berth {
namespace {

// Prefill's least share of the target.
constexpr double kLeastShare = 0.25;
// How fast an estimate follows the measurements, per step.
constexpr double kFollow = 0.2;
// Until a token's time is known.
constexpr int64_t kFirstTokens = 32;

absl::Duration Follow(absl::Duration estimate, absl::Duration measured) {
  if (estimate == absl::ZeroDuration()) return measured;
  return estimate + kFollow * (measured - estimate);
}

}  // namespace

absl::Duration StepPacer::TimeForPrefill() const { return std::max(kLeastShare * target_, target_ - decode_time_); }

int64_t StepPacer::MostPrefillTokens() const {
  if (target_ == absl::ZeroDuration()) return std::numeric_limits<int64_t>::max();
  if (token_time_ == absl::ZeroDuration()) return kFirstTokens;
  return std::max<int64_t>(1, static_cast<int64_t>(absl::FDivDuration(TimeForPrefill(), token_time_)));
}

void StepPacer::OnStep(absl::Duration time, int64_t prefill_tokens, int64_t decode_rows) {
  if (prefill_tokens == 0) {
    decode_time_ = Follow(decode_time_, time);
    return;
  }
  // A few tokens, as at the end of a prompt, say little of the next ones, unless the step was too long.
  if (2 * prefill_tokens < MostPrefillTokens() && time <= target_ + decode_time_) return;
  absl::Duration rest = decode_rows > 0 ? time - decode_time_ : time;
  rest = std::max(rest, kLeastShare * time);
  const absl::Duration measured = rest / prefill_tokens;
  token_time_ = measured > token_time_ ? measured : Follow(token_time_, measured);
}

}  // namespace berth
