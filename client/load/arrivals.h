// When an open loop's requests are meant to start: a Poisson process. Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_ARRIVALS_H_
#define BERTH_CLIENT_LOAD_ARRIVALS_H_

#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace berth::cli {

class PoissonArrivals {
 public:
  // REQUIRES: rate > 0, in requests per second. Equal seeds give equal times.
  PoissonArrivals(double rate, uint64_t seed) : random_(seed), gap_seconds_(rate) {}

  // The next start, since the run's: never before the last one.
  absl::Duration Next() { return next_ += absl::Seconds(gap_seconds_(random_)); }

 private:
  std::mt19937_64 random_;
  std::exponential_distribution<double> gap_seconds_;
  absl::Duration next_ = absl::ZeroDuration();
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_ARRIVALS_H_
