#include "client/load/report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "client/load/measurements.h"

namespace berth::cli {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxFaults = 20;

void CountRequest(const RequestRecord& record, Report* report) {
  if (record.shortened) ++report->num_shortened;
  if (record.cancelled) {
    ++report->num_cancelled;
  } else if (!record.ok()) {
    ++report->num_failed;
    Report::Error& error = report->errors[CodeName(record.code)];
    if (error.count++ == 0) error.first_message = record.error;
  } else {
    ++report->num_ok;
    report->prompt_tokens += record.prompt_tokens;
    report->cached_tokens += record.cached_tokens;
    report->output_tokens += record.output_tokens;
    if (WithinLimits(record, report->limits)) ++report->num_within_limits;
  }
  if (!record.faults.empty()) ++report->num_faulty;
  for (const std::string& fault : record.faults) {
    if (report->faults.size() < kMaxFaults)
      report->faults.push_back(absl::StrCat("request ", record.index, ": ", fault));
  }
}

// When the tokens of `record` came, in seconds since the run's start. REQUIRES: it has one.
std::vector<double> TokenTimes(const RequestRecord& record) {
  std::vector<double> times = {absl::ToDoubleSeconds(record.first_token)};
  for (float gap : record.gap_seconds) times.push_back(times.back() + gap);
  return times;
}

std::optional<double> SteadyRate(absl::Span<const RequestRecord> records) {
  absl::Duration from = -absl::InfiniteDuration();
  absl::Duration to = absl::InfiniteDuration();
  for (const RequestRecord& record : records) {
    if (!record.ok() || record.output_tokens == 0) return std::nullopt;
    from = std::max(from, record.first_token);
    to = std::min(to, record.last_token);
  }
  // Gaps are floats: a token that came at the very edge is inside.
  const double first = absl::ToDoubleSeconds(from) - 1e-6;
  const double last = absl::ToDoubleSeconds(to) + 1e-6;
  double rate = 0;
  for (const RequestRecord& record : records) {
    const std::vector<double> times = TokenTimes(record);
    const auto begin = std::lower_bound(times.begin(), times.end(), first);
    const auto end = std::upper_bound(begin, times.end(), last);
    if (end - begin < 2 || end[-1] <= *begin) return std::nullopt;
    // Tokens of one message have one time. What came with the first was made before it.
    const auto later = std::upper_bound(begin, end, *begin);
    rate += static_cast<double>(end - later) / (end[-1] - *begin);
  }
  return records.empty() ? std::nullopt : std::optional<double>(rate);
}

std::vector<std::pair<const char*, absl::Duration>> NamedLimits(const GoodputLimits& limits) {
  std::vector<std::pair<const char*, absl::Duration>> named;
  if (limits.ttft) named.emplace_back("ttft", *limits.ttft);
  if (limits.itl) named.emplace_back("itl", *limits.itl);
  if (limits.tpot) named.emplace_back("tpot", *limits.tpot);
  if (limits.e2e) named.emplace_back("e2e", *limits.e2e);
  return named;
}

std::string TableRow(const char* name, const Summary& seconds) {
  std::string row = absl::StrFormat("%-8s", name);
  for (double value : {seconds.mean, seconds.p50, seconds.p90, seconds.p95, seconds.p99, seconds.max}) {
    absl::StrAppendFormat(&row, " %9.2f", value * 1000);
  }
  return row + "\n";
}

std::string HeaderText(const Report& report) {
  const RunDescription& run = report.run;
  const std::string loop = run.concurrency > 0 ? absl::StrFormat("closed loop, %d at a time", run.concurrency)
                           : run.rate > 0      ? absl::StrFormat("open loop, %g arrivals/s", run.rate)
                                               : "open loop, arrivals of the trace";
  return absl::StrFormat("%s; %s (%s, %s) at %s\nprompts %s, outputs %s, %stemperature %g, seed %d\n\n", loop,
                         run.model, run.dtype, run.device, run.server, run.prompts, run.output_tokens,
                         run.conversations.empty() ? "" : run.conversations + ", ", run.temperature, run.seed);
}

std::string GoodputText(const Report& report) {
  std::string text =
      absl::StrFormat("goodput    %.2f requests/s: %d of %d within", report.PerSecond(report.num_within_limits),
                      report.num_within_limits, report.num_ok + report.num_failed);
  for (const auto& [name, limit] : NamedLimits(report.limits)) {
    absl::StrAppend(&text, " ", name, " <= ", absl::FormatDuration(limit));
  }
  return text + "\n";
}

std::string VerificationText(const Report& report) {
  std::string text = absl::StrFormat("verified   %d streams against %d sent alone: %d with faults\n", report.num_ok,
                                     report.num_references, report.num_faulty);
  for (const std::string& fault : report.faults) absl::StrAppend(&text, "  fault    ", fault, "\n");
  return text;
}

ordered_json SummaryJson(const Summary& summary) {
  return {{"count", summary.count}, {"mean", summary.mean}, {"std", summary.deviation}, {"p50", summary.p50},
          {"p90", summary.p90},     {"p95", summary.p95},   {"p99", summary.p99},       {"max", summary.max}};
}

ordered_json RunJson(const RunDescription& run) {
  ordered_json json = {{"server", run.server},
                       {"model", {{"name", run.model}, {"dtype", run.dtype}, {"device", run.device}}},
                       {"loop", run.concurrency > 0 ? "closed" : "open"}};
  if (run.concurrency > 0) {
    json["concurrency"] = run.concurrency;
  } else {
    json["rate"] = run.rate;
  }
  json.update({{"prompts", run.prompts},
               {"output_tokens", run.output_tokens},
               {"conversations", run.conversations},
               {"temperature", run.temperature},
               {"seed", run.seed}});
  return json;
}

ordered_json GoodputJson(const Report& report) {
  if (!report.limits.any()) return nullptr;
  ordered_json limits = ordered_json::object();
  for (const auto& [name, limit] : NamedLimits(report.limits)) {
    limits[absl::StrCat(name, "_seconds")] = absl::ToDoubleSeconds(limit);
  }
  return {{"limits", limits},
          {"requests_within_limits", report.num_within_limits},
          {"requests_per_second", report.PerSecond(report.num_within_limits)}};
}

ordered_json VerificationJson(const Report& report) {
  if (!report.verified) return nullptr;
  return {{"streams", report.num_ok},
          {"references", report.num_references},
          {"faulty_streams", report.num_faulty},
          {"faults", report.faults}};
}

}  // namespace

bool WithinLimits(const RequestRecord& record, const GoodputLimits& limits) {
  if (!record.ok()) return false;
  if (limits.ttft && record.ttft() > *limits.ttft) return false;
  if (limits.e2e && record.e2e() > *limits.e2e) return false;
  if (limits.tpot && record.output_tokens > 1 && record.tpot() > *limits.tpot) return false;
  const auto largest = std::max_element(record.gap_seconds.begin(), record.gap_seconds.end());
  return !limits.itl || largest == record.gap_seconds.end() || *largest <= absl::ToDoubleSeconds(*limits.itl);
}

Report BuildReport(absl::Span<const RequestRecord> records, absl::Duration elapsed, const GoodputLimits& limits) {
  Report report;
  report.limits = limits;
  report.elapsed_seconds = absl::ToDoubleSeconds(elapsed);
  for (const RequestRecord& record : records) CountRequest(record, &report);
  Measurements measurements = MeasurementsOf(records);
  report.steady_tokens_per_second = SteadyRate(records);
  report.ttft_seconds = Summarize(std::move(measurements.ttft));
  report.itl_seconds = Summarize(std::move(measurements.itl));
  report.tpot_seconds = Summarize(std::move(measurements.tpot));
  report.e2e_seconds = Summarize(std::move(measurements.e2e));
  report.send_lag_seconds = Summarize(std::move(measurements.send_lag));
  return report;
}

std::string ReportText(const Report& report) {
  std::string text = HeaderText(report);
  absl::StrAppendFormat(&text, "requests   %d ok, %d failed, %d cancelled in %.2f s\n", report.num_ok,
                        report.num_failed, report.num_cancelled, report.elapsed_seconds);
  for (const auto& [code, error] : report.errors) {
    absl::StrAppendFormat(&text, "  failed   %d %s: %s\n", error.count, code, error.first_message);
  }
  if (report.num_shortened > 0) {
    absl::StrAppendFormat(&text, "shortened  %d requests, to the server's longest sequence\n", report.num_shortened);
  }
  absl::StrAppendFormat(&text, "throughput %.2f requests/s, %.1f prompt tokens/s, %.1f output tokens/s\n",
                        report.PerSecond(report.num_ok), report.PerSecond(report.prompt_tokens),
                        report.PerSecond(report.output_tokens));
  if (report.cached_tokens > 0) {
    absl::StrAppendFormat(
        &text, "cached     %.1f %% of the prompt tokens\n",
        100.0 * static_cast<double>(report.cached_tokens) / static_cast<double>(report.prompt_tokens));
  }
  if (report.steady_tokens_per_second) {
    absl::StrAppendFormat(&text, "steady     %.1f output tokens/s while all streamed\n",
                          *report.steady_tokens_per_second);
  }
  if (report.limits.any()) absl::StrAppend(&text, GoodputText(report));
  if (report.verified) absl::StrAppend(&text, VerificationText(report));
  absl::StrAppend(&text, "\nms            mean       p50       p90       p95       p99       max\n",
                  TableRow("TTFT", report.ttft_seconds), TableRow("ITL", report.itl_seconds),
                  TableRow("TPOT", report.tpot_seconds), TableRow("E2E", report.e2e_seconds),
                  TableRow("send lag", report.send_lag_seconds));
  return text;
}

ordered_json ReportJson(const Report& report) {
  ordered_json errors = ordered_json::array();
  for (const auto& [code, error] : report.errors) {
    errors.push_back({{"code", code}, {"count", error.count}, {"first_message", error.first_message}});
  }
  return {{"run", RunJson(report.run)},
          {"elapsed_seconds", report.elapsed_seconds},
          {"requests",
           {{"ok", report.num_ok},
            {"failed", report.num_failed},
            {"cancelled", report.num_cancelled},
            {"shortened", report.num_shortened}}},
          {"errors", errors},
          {"throughput",
           {{"requests_per_second", report.PerSecond(report.num_ok)},
            {"prompt_tokens_per_second", report.PerSecond(report.prompt_tokens)},
            {"output_tokens_per_second", report.PerSecond(report.output_tokens)},
            {"prompt_tokens", report.prompt_tokens},
            {"cached_tokens", report.cached_tokens},
            {"output_tokens", report.output_tokens},
            {"steady_tokens_per_second",
             report.steady_tokens_per_second ? ordered_json(*report.steady_tokens_per_second) : ordered_json()}}},
          {"goodput", GoodputJson(report)},
          {"verification", VerificationJson(report)},
          {"latency_seconds",
           {{"ttft", SummaryJson(report.ttft_seconds)},
            {"itl", SummaryJson(report.itl_seconds)},
            {"tpot", SummaryJson(report.tpot_seconds)},
            {"e2e", SummaryJson(report.e2e_seconds)},
            {"send_lag", SummaryJson(report.send_lag_seconds)}}}};
}

}  // namespace berth::cli
