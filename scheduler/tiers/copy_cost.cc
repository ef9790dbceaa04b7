#include "scheduler/tiers/copy_cost.h"

#include <algorithm>

namespace berth {
namespace {

// The share of its weight that an older span keeps with each new one. The last ten or so count.
constexpr double kKept = 0.9;

}  // namespace

void RunningRate::Add(int64_t amount, absl::Duration time) {
  // Both sums decay together, so the rate is weighted by time: many short spans do not outvote a long one.
  amount_ = amount_ * kKept + static_cast<double>(amount);
  // The clock may be set back.
  seconds_ = seconds_ * kKept + std::max(0.0, absl::ToDoubleSeconds(time));
}

absl::Duration RunningRate::TimeFor(int64_t amount) const {
  return amount_ > 0 ? absl::Seconds(seconds_ / amount_ * static_cast<double>(amount)) : absl::ZeroDuration();
}

}  // namespace berth
