#include "server/metrics/histogram.h"

#include <algorithm>

namespace berth {

uint64_t HistogramSnapshot::TotalCount() const {
  uint64_t total = 0;
  for (uint64_t count : counts) total += count;
  return total;
}

void HistogramSnapshot::Merge(const HistogramSnapshot& other) {
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  sum += other.sum;
}

Histogram::Histogram(absl::Span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

void Histogram::Observe(double value) {
  const size_t bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

HistogramSnapshot Histogram::Read() const {
  HistogramSnapshot snapshot{.bounds = bounds_, .counts = std::vector<uint64_t>(counts_.size())};
  for (size_t i = 0; i < counts_.size(); ++i) snapshot.counts[i] = counts_[i].load(std::memory_order_relaxed);
  snapshot.sum = sum_.load(std::memory_order_relaxed);
  return snapshot;
}

}  // namespace berth
