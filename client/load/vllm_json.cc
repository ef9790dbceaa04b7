#include "client/load/vllm_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/connection.h"

namespace berth::cli {
namespace {

using nlohmann::ordered_json;

// The most requests that were under way at a time.
int64_t PeakConcurrency(absl::Span<const RequestRecord> records) {
  std::vector<std::pair<absl::Duration, int>> events;
  for (const RequestRecord& record : records) {
    if (!record.ok()) continue;
    events.emplace_back(record.sent, 1);
    events.emplace_back(record.end, -1);  // sorts before a start at the same time
  }
  std::sort(events.begin(), events.end());
  int64_t now = 0;
  int64_t peak = 0;
  for (const auto& [time, change] : events) peak = std::max(peak, now += change);
  return peak;
}

void AddLatency(const char* name, const Summary& seconds, ordered_json* json) {
  (*json)[absl::StrCat("mean_", name, "_ms")] = seconds.mean * 1000;
  (*json)[absl::StrCat("median_", name, "_ms")] = seconds.p50 * 1000;
  (*json)[absl::StrCat("std_", name, "_ms")] = seconds.deviation * 1000;
  (*json)[absl::StrCat("p99_", name, "_ms")] = seconds.p99 * 1000;
}

// A value for each request, in the order they were sent.
void AddDetails(absl::Span<const RequestRecord> records, ordered_json* json) {
  std::vector<const RequestRecord*> sorted;
  for (const RequestRecord& record : records) sorted.push_back(&record);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->index < b->index; });
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times",
                          "generated_texts", "errors"}) {
    (*json)[key] = ordered_json::array();
  }
  for (const RequestRecord* record : sorted) {
    (*json)["input_lens"].push_back(record->prompt_tokens);
    (*json)["output_lens"].push_back(record->output_tokens);
    (*json)["ttfts"].push_back(record->output_tokens > 0 ? absl::ToDoubleSeconds(record->ttft()) : 0);
    (*json)["itls"].push_back(record->gap_seconds);
    (*json)["latencies"].push_back(record->ok() ? absl::ToDoubleSeconds(record->e2e()) : 0);
    (*json)["start_times"].push_back(absl::ToDoubleSeconds(record->sent));
    (*json)["queue_times"].push_back(absl::ToDoubleSeconds(record->send_lag()));
    (*json)["generated_texts"].push_back("");
    (*json)["errors"].push_back(record->ok() ? "" : absl::StrCat(CodeName(record->code), ": ", record->error));
  }
}

}  // namespace

ordered_json VllmJson(const Report& report, absl::Span<const RequestRecord> records, const Course& course,
                      absl::Time date) {
  const RunDescription& run = report.run;
  const std::vector<double>& rates = course.output_tokens_per_second;
  ordered_json json = {
      {"date", absl::FormatTime("%Y%m%d-%H%M%S", date, absl::LocalTimeZone())},
      {"endpoint_type", "berth.v1"},
      {"backend", "berth"},
      {"label", nullptr},
      {"model_id", run.model},
      {"tokenizer_id", run.model},
      {"num_prompts", records.size()},
      {"request_rate", run.rate > 0 ? ordered_json(run.rate) : ordered_json("inf")},
      {"burstiness", 1.0},
      {"max_concurrency", run.concurrency > 0 ? ordered_json(run.concurrency) : ordered_json()},
      {"duration", report.elapsed_seconds},
      {"completed", report.num_ok},
      {"failed", report.num_failed},
      {"total_input_tokens", report.prompt_tokens},
      {"total_output_tokens", report.output_tokens},
      {"request_throughput", report.PerSecond(report.num_ok)},
      {"request_goodput",
       report.limits.any() ? ordered_json(report.PerSecond(report.num_within_limits)) : ordered_json()},
      {"output_throughput", report.PerSecond(report.output_tokens)},
      {"total_token_throughput", report.PerSecond(report.prompt_tokens + report.output_tokens)},
      {"max_output_tokens_per_s", rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end())},
      {"max_concurrent_requests", PeakConcurrency(records)},
      {"rtfx", 0.0}};
  AddLatency("ttft", report.ttft_seconds, &json);
  AddLatency("tpot", report.tpot_seconds, &json);
  AddLatency("itl", report.itl_seconds, &json);
  AddLatency("e2el", report.e2e_seconds, &json);
  AddDetails(records, &json);
  return json;
}

}  // namespace berth::cli
