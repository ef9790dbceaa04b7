// A histogram that many threads observe and one scrape reads, without a lock: nobody waits for anybody.
//
// Why not prometheus-cpp's: it takes a mutex for each observation. A scrape that falls between the parts of one
// observation may see its bucket before its sum; the next scrape has both.
#ifndef BERTH_SERVER_METRICS_HISTOGRAM_H_
#define BERTH_SERVER_METRICS_HISTOGRAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace berth {

// What a scrape saw. Copies of one histogram under several names come from one snapshot.
struct HistogramSnapshot {
  std::vector<double> bounds;    // ascending upper bounds, +Inf left out
  std::vector<uint64_t> counts;  // by bucket, not cumulative; one more than bounds
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
