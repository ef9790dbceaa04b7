// A load test's figures under the names of `vllm bench serve`, for people and scripts that read its result files.
// Functions; thread-safe.
#ifndef BERTH_CLIENT_LOAD_VLLM_JSON_H_
#define BERTH_CLIENT_LOAD_VLLM_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/load/plots.h"
#include "client/load/record.h"
#include "client/load/report.h"

namespace berth::cli {

// The keys are those of vllm/benchmarks/serve.py with --save-detailed and --percentile-metrics=ttft,tpot,itl,e2el.
// Latencies count from the intended start, as in the report, so they include queue_times: how late each request was
// sent. Texts are not kept, so generated_texts are "". The value of rtfx is 0, as for all models without audio.
// Without limits, request_goodput is null; in an open loop, max_concurrency is. `course`: that of the records. `date`:
// when the run began.
nlohmann::ordered_json VllmJson(const Report& report, absl::Span<const RequestRecord> records, const Course& course,
                                absl::Time date);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_VLLM_JSON_H_
