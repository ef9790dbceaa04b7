#include "client/load/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace berth::cli {

double Percentile(absl::Span<const double> sorted, double q) {
  const double rank = q * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(rank));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - static_cast<double>(below));
}

Summary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  const double mean = sum / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {.count = static_cast<int64_t>(values.size()),
          .mean = mean,
          .deviation = std::sqrt(squares / static_cast<double>(values.size())),
          .p50 = Percentile(values, 0.50),
          .p90 = Percentile(values, 0.90),
          .p95 = Percentile(values, 0.95),
          .p99 = Percentile(values, 0.99),
          .max = values.back()};
}

}  // namespace berth::cli
