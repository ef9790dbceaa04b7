// Figures of a set of measurements. Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_STATISTICS_H_
#define BERTH_CLIENT_LOAD_STATISTICS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace berth::cli {

// All 0 when there is no measurement.
struct Summary {
  int64_t count = 0;
  double mean = 0;
  double deviation = 0;  // standard deviation, over n
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;

  bool operator==(const Summary&) const = default;
};

// The value at rank q * (n - 1) of the sorted values, linear between neighbours (numpy's default).
// REQUIRES: `sorted` is not empty; 0 <= q <= 1.
double Percentile(absl::Span<const double> sorted, double q);

Summary Summarize(std::vector<double> values);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_STATISTICS_H_
