// A rate limit: a bucket that fills at a rate, from which each use takes. Thread-compatible.
#ifndef BERTH_SERVER_ADMISSION_TOKEN_BUCKET_H_
#define BERTH_SERVER_ADMISSION_TOKEN_BUCKET_H_

#include <algorithm>

#include "absl/time/time.h"

namespace berth {

class TokenBucket {
 public:
  // Fills the bucket for the time since the last call, then sets the rate per second and the size. Rate 0: no limit. A
  // bucket that gets its first rate is full. A clock that is set back fills nothing.
  void Refresh(double rate, absl::Duration burst, absl::Time now) {
    const double size = std::max(1.0, rate * absl::ToDoubleSeconds(burst));
    const double added = rate_ * std::max(0.0, absl::ToDoubleSeconds(now - updated_));
    level_ = rate_ == 0 ? size : std::min(size, level_ + added);
    rate_ = rate;
    size_ = size;
    updated_ = now;
  }

  // The time until Take(amount) is allowed. An amount above the size needs a full bucket.
  absl::Duration TimeUntil(double amount) const {
    const double missing = std::min(amount, size_) - level_;
    return rate_ == 0 || missing <= kRounding ? absl::ZeroDuration() : absl::Seconds(missing / rate_);
  }
  void Take(double amount) { level_ -= amount; }
  void Return(double amount) { level_ = std::min(size_, level_ + amount); }
  bool full() const { return rate_ == 0 || level_ >= size_ - kRounding; }

 private:
  // What sums of fractions may be off.
  static constexpr double kRounding = 1e-6;

  double rate_ = 0;
  double size_ = 0;
  double level_ = 0;
  absl::Time updated_;
};

}  // namespace berth

#endif  // BERTH_SERVER_ADMISSION_TOKEN_BUCKET_H_
