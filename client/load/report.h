// The figures of a load test, computed from its records, as text and as JSON. Thread-compatible.
//
// Definitions, beside those of record.h. `elapsed` is the time from the run's start to the last request's end.
//   - requests/s, tokens/s: of the requests that ended OK, over `elapsed`.
//   - goodput: requests that ended OK within all limits, over `elapsed`. The ITL limit holds for a request's largest
//   gap.
//   - latencies: of the requests that ended OK; the send lag is of all requests.
//   - steady decode: tokens/s while all requests streamed, that is from the latest first token to the earliest last
//     token. It is the sum of the streams' own rates between their first and last token in that time.
#ifndef BERTH_CLIENT_LOAD_REPORT_H_
#define BERTH_CLIENT_LOAD_REPORT_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/load/record.h"
#include "client/load/statistics.h"

namespace berth::cli {

// An absent limit always holds.
struct GoodputLimits {
  std::optional<absl::Duration> ttft = {};
  std::optional<absl::Duration> itl = {};
  std::optional<absl::Duration> tpot = {};
  std::optional<absl::Duration> e2e = {};

  bool any() const { return ttft || itl || tpot || e2e; }
};

// What was asked for, for the reader of the report.
struct RunDescription {
  std::string server = {};
  std::string model = {};
  std::string dtype = {};
  std::string device = {};
  int64_t concurrency = 0;   // closed loop; 0: open loop
  double rate = 0;           // arrivals per second; 0 in an open loop: those of a trace
  std::string prompts = {};  // "uniform:1:300", or "lines of FILE"
  std::string output_tokens = {};
  std::string conversations = {};  // "4 turns, grow"; "": each of one request
  double temperature = 0;
  uint64_t seed = 0;
};

struct Report {
  RunDescription run;
  GoodputLimits limits;
  double elapsed_seconds = 0;
  int64_t num_ok = 0;
  int64_t num_failed = 0;
  int64_t num_cancelled = 0;  // by Ctrl-C
  int64_t num_shortened = 0;  // to the server's longest sequence
  int64_t num_within_limits = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of them, found in the cache
  int64_t output_tokens = 0;
  std::optional<double> steady_tokens_per_second;  // absent: a request failed, or they did not all stream at once
  Summary ttft_seconds, itl_seconds, tpot_seconds, e2e_seconds, send_lag_seconds;

  struct Error {
    int64_t count = 0;
    std::string first_message;
  };
  std::map<std::string, Error> errors;  // by code

  bool verified = false;
  int64_t num_references = 0;
  int64_t num_faulty = 0;           // requests with a fault
  std::vector<std::string> faults;  // the first ones, "request 12: ..."

  double PerSecond(int64_t count) const { return elapsed_seconds > 0 ? count / elapsed_seconds : 0; }
};

// Fills everything but `run`, `verified` and `num_references`.
Report BuildReport(absl::Span<const RequestRecord> records, absl::Duration elapsed, const GoodputLimits& limits);

bool WithinLimits(const RequestRecord& record, const GoodputLimits& limits);

std::string ReportText(const Report& report);

// Seconds throughout; "goodput" and "verification" are null when there were no limits or no --verify.
nlohmann::ordered_json ReportJson(const Report& report);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_REPORT_H_
