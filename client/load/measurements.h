// The latencies of a load test by kind, in seconds, as record.h defines them. A value.
#ifndef BERTH_CLIENT_LOAD_MEASUREMENTS_H_
#define BERTH_CLIENT_LOAD_MEASUREMENTS_H_

#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/load/record.h"

namespace berth::cli {

// It covers the requests that ended OK; the send lag covers all requests.
struct Measurements {
  std::vector<double> ttft, itl, tpot, e2e, send_lag;
};

inline Measurements MeasurementsOf(absl::Span<const RequestRecord> records) {
  Measurements all;
  for (const RequestRecord& record : records) {
    all.send_lag.push_back(absl::ToDoubleSeconds(record.send_lag()));
    if (!record.ok()) continue;
    all.e2e.push_back(absl::ToDoubleSeconds(record.e2e()));
    all.itl.insert(all.itl.end(), record.gap_seconds.begin(), record.gap_seconds.end());
    if (record.output_tokens > 0) all.ttft.push_back(absl::ToDoubleSeconds(record.ttft()));
    if (record.output_tokens > 1) all.tpot.push_back(absl::ToDoubleSeconds(record.tpot()));
  }
  return all;
}

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_MEASUREMENTS_H_
