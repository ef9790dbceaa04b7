// A histogram that many threads write and a scrape reads, without a lock.
//
// prometheus-cpp's histogram takes a mutex for each observation; this one does three atomic additions. A scrape that
// runs during an observation may see its bucket before its sum; the next scrape sees both.
#ifndef BERTH_SERVER_METRICS_HISTOGRAM_H_
#define BERTH_SERVER_METRICS_HISTOGRAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace berth {

// Contents of a histogram at one moment. A histogram that is exported under two names has equal numbers under both,
// because they come from one snapshot.
struct HistogramSnapshot {
  std::vector<double> bounds;    // ascending upper bounds without +Inf
  std::vector<uint64_t> counts;  // by bucket, not cumulative; the last bucket is above all bounds
  double sum = 0;

  uint64_t TotalCount() const;
  // Adds the observations of `other`. REQUIRES: equal bounds.
  void Merge(const HistogramSnapshot& other);
};

class Histogram {
 public:
  // `bounds`: ascending upper bounds, inclusive; +Inf is implied.
  explicit Histogram(absl::Span<const double> bounds);

  void Observe(double value);
  HistogramSnapshot Read() const;

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_HISTOGRAM_H_
