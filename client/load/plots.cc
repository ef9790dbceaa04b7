#include "client/load/plots.h"

#include <algorithm>
#include <cmath>

#include "client/load/measurements.h"
#include "client/load/statistics.h"

namespace berth::cli {
namespace {

using nlohmann::ordered_json;

constexpr double kSmallest = 1e-6;
constexpr int kBins = 48;
constexpr double kMostIntervals = 120;

// The shortest of 0.1, 0.2, 0.5, 1, 2, 5, ... seconds that needs at most kMostIntervals.
double IntervalSeconds(double elapsed) {
  for (double power = 0.1;; power *= 10) {
    for (const double digit : {1, 2, 5}) {
      if (elapsed <= digit * power * kMostIntervals) return digit * power;
    }
  }
}

// Sorts `*values`. Negative: there are none.
double PercentileOf(std::vector<double>* values, double q) {
  if (values->empty()) return -1;
  std::sort(values->begin(), values->end());
  return Percentile(*values, q);
}

// The measurements of each interval.
struct Intervals {
  explicit Intervals(size_t n) : ttft(n), itl(n), tokens(n), requests(n), failures(n) {}

  std::vector<std::vector<double>> ttft, itl;
  std::vector<int64_t> tokens, requests, failures;
};

void AddRecord(const RequestRecord& record, double interval, Intervals* all) {
  const auto at = [&](double seconds) {
    const double index = std::max(0.0, seconds) / interval;
    return std::min(all->tokens.size() - 1, static_cast<size_t>(index));
  };
  const size_t end = at(absl::ToDoubleSeconds(record.end));
  if (record.ok()) ++all->requests[end];
  if (!record.ok() && !record.cancelled) ++all->failures[end];
  if (record.output_tokens == 0) return;
  double time = absl::ToDoubleSeconds(record.first_token);
  ++all->tokens[at(time)];
  if (record.ok()) all->ttft[at(time)].push_back(absl::ToDoubleSeconds(record.ttft()));
  for (const float gap : record.gap_seconds) {
    time += gap;
    ++all->tokens[at(time)];
    if (record.ok()) all->itl[at(time)].push_back(gap);
  }
}

ordered_json HistogramJson(const std::vector<double>& seconds) {
  const Histogram histogram = MakeHistogram(seconds);
  return {{"edges", histogram.edges}, {"counts", histogram.counts}};
}

ordered_json CourseJson(const Course& course) {
  return {{"interval_seconds", course.interval_seconds},
          {"ttft_p50", course.ttft_p50},
          {"ttft_p99", course.ttft_p99},
          {"itl_p50", course.itl_p50},
          {"itl_p99", course.itl_p99},
          {"output_tokens_per_second", course.output_tokens_per_second},
          {"requests_per_second", course.requests_per_second},
          {"failures_per_second", course.failures_per_second}};
}

ordered_json SamplesJson(absl::Span<const LoadSample> samples) {
  ordered_json json = ordered_json::array();
  for (const LoadSample& sample : samples) {
    json.push_back({{"seconds", sample.seconds},
                    {"running", sample.running},
                    {"waiting", sample.waiting},
                    {"arena_bytes", sample.arena_bytes},
                    {"live_bytes", sample.live_bytes},
                    {"shared_bytes", sample.shared_bytes},
                    {"cached_bytes", sample.cached_bytes}});
  }
  return json;
}

}  // namespace

Histogram MakeHistogram(absl::Span<const double> seconds) {
  if (seconds.empty()) return {};
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  const double low = std::max(kSmallest, *least);
  // A little above, so that rounding leaves the largest measurement inside; never an empty range.
  const double high = std::max(*most, low) * (1 + 1e-9) + 1e-12;
  const double width = std::log(high / low) / kBins;
  Histogram histogram;
  histogram.counts.resize(kBins);
  for (int i = 0; i <= kBins; ++i) histogram.edges.push_back(low * std::exp(width * i));
  for (const double value : seconds) {
    const double bin = std::log(std::max(value, low) / low) / width;
    ++histogram.counts[std::min(kBins - 1, static_cast<int>(bin))];
  }
  return histogram;
}

Course MakeCourse(absl::Span<const RequestRecord> records, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  Course course = {.interval_seconds = IntervalSeconds(seconds)};
  const size_t n = static_cast<size_t>(std::max(1.0, std::round(seconds / course.interval_seconds)));
  Intervals intervals(n);
  for (const RequestRecord& record : records) AddRecord(record, course.interval_seconds, &intervals);
  for (size_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n;
    const double length = last ? seconds - static_cast<double>(i) * course.interval_seconds : course.interval_seconds;
    const auto per_second = [&](int64_t count) { return length > 0 ? static_cast<double>(count) / length : 0; };
    course.ttft_p50.push_back(PercentileOf(&intervals.ttft[i], 0.5));
    course.ttft_p99.push_back(PercentileOf(&intervals.ttft[i], 0.99));
    course.itl_p50.push_back(PercentileOf(&intervals.itl[i], 0.5));
    course.itl_p99.push_back(PercentileOf(&intervals.itl[i], 0.99));
    course.output_tokens_per_second.push_back(per_second(intervals.tokens[i]));
    course.requests_per_second.push_back(per_second(intervals.requests[i]));
    course.failures_per_second.push_back(per_second(intervals.failures[i]));
  }
  return course;
}

ordered_json PlotsJson(absl::Span<const RequestRecord> records, const Course& course,
                       absl::Span<const LoadSample> samples) {
  const Measurements all = MeasurementsOf(records);
  return {{"histograms",
           {{"ttft", HistogramJson(all.ttft)},
            {"itl", HistogramJson(all.itl)},
            {"tpot", HistogramJson(all.tpot)},
            {"e2e", HistogramJson(all.e2e)}}},
          {"course", CourseJson(course)},
          {"samples", SamplesJson(samples)}};
}

}  // namespace berth::cli
