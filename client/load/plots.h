// What the plots of a load test's report show, computed from its records: histograms of latencies, and their course
// over time. Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_PLOTS_H_
#define BERTH_CLIENT_LOAD_PLOTS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/load/load_sampler.h"
#include "client/load/record.h"

namespace berth::cli {

// Measurements by size. Bin i holds those in [edges[i], edges[i + 1]), the last one its upper edge too.
struct Histogram {
  std::vector<double> edges;  // one more than counts; empty: there is no measurement
  std::vector<int64_t> counts;
};

// Bins of equal width on a logarithmic scale, from the smallest to the largest measurement. A time below a microsecond
// counts as a microsecond, because the tokens of one message have gaps of 0.
Histogram MakeHistogram(absl::Span<const double> seconds);

// A run, cut into intervals of equal length; the last may be up to half an interval shorter or longer. The rates of a
// shorter rest would show a few events as a peak. A request counts where its event fell: a latency where it ended, a
// token where it came, a failure where it ended.
struct Course {
  double interval_seconds = 0;
  // Each with a value an interval. A percentile without a measurement is negative.
  std::vector<double> ttft_p50, ttft_p99, itl_p50, itl_p99;
  std::vector<double> output_tokens_per_second, requests_per_second, failures_per_second;
};

// At most about 120 intervals of a round length.
Course MakeCourse(absl::Span<const RequestRecord> records, absl::Duration elapsed);

// All that the report's page draws: "histograms" by latency, "course", and "samples" of the server's load.
nlohmann::ordered_json PlotsJson(absl::Span<const RequestRecord> records, const Course& course,
                                 absl::Span<const LoadSample> samples);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_PLOTS_H_
