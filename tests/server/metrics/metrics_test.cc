#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/metrics/metric_families.h"
#include "tests/server/metrics/metrics_text.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::Key;

SeriesMap Scrape(const Metrics& metrics) {
  MetricFamilies families(metrics.options().model_name, metrics.options().vllm_aliases);
  metrics.Collect(&families);
  return ReadSeries(ToText(families.Take()));
}

const Metrics::Options kOptions = {.model_name = "m"};

RequestTimes TimesOf(absl::Duration queue, absl::Duration prefill, absl::Duration decode) {
  RequestTimes times;
  times.arrival = absl::FromUnixSeconds(1000);
  times.first_scheduled = times.arrival + queue;
  times.first_token = times.first_scheduled + prefill;
  times.finished = times.first_token + decode;
  return times;
}

// The series that dashboards and alerts are built on. One that is missing until its first event makes a rate() miss it.
const char* const kSeries[] = {
    R"(berth_health{model_name="m",probe="liveness"})",
    R"(berth_health{model_name="m",probe="readiness"})",
    R"(berth_requests_accepted_total{model_name="m"})",
    R"(berth_requests_accepted_prompt_tokens_total{model_name="m"})",
    R"(berth_requests_finished_total{model_name="m",finish_reason="stop"})",
    R"(berth_requests_finished_total{model_name="m",finish_reason="length"})",
    R"(berth_requests_finished_total{model_name="m",finish_reason="cancelled"})",
    R"(berth_requests_finished_total{model_name="m",finish_reason="deadline"})",
    R"(berth_requests_finished_total{model_name="m",finish_reason="error"})",
    R"(vllm:request_success_total{model_name="m",finished_reason="stop"})",
    R"(vllm:request_success_total{model_name="m",finished_reason="length"})",
    R"(vllm:request_success_total{model_name="m",finished_reason="abort"})",
    R"(vllm:request_success_total{model_name="m",finished_reason="error"})",
    R"(berth_requests_rejected_total{model_name="m",reason="queue_full"})",
    R"(berth_requests_rejected_total{model_name="m",reason="queued_tokens"})",
    R"(berth_requests_rejected_total{model_name="m",reason="wait"})",
    R"(berth_requests_rejected_total{model_name="m",reason="deadline"})",
    R"(berth_requests_rejected_total{model_name="m",reason="texts"})",
    R"(berth_requests_rejected_total{model_name="m",reason="grammars"})",
    R"(berth_requests_rejected_total{model_name="m",reason="tenant_request_rate"})",
    R"(berth_requests_rejected_total{model_name="m",reason="tenant_token_rate"})",
    R"(berth_requests_rejected_total{model_name="m",reason="tenant_queue"})",
    R"(berth_requests_rejected_total{model_name="m",reason="tenant_queued_tokens"})",
    R"(berth_requests_rejected_total{model_name="m",reason="tenant_running"})",
    R"(berth_requests_rejected_total{model_name="m",reason="tenant_cache"})",
    R"(berth_requests_rejected_total{model_name="m",reason="draining"})",
    R"(berth_requests_rejected_total{model_name="m",reason="too_long"})",
    R"(berth_requests_rejected_total{model_name="m",reason="invalid"})",
    R"(berth_requests_rejected_total{model_name="m",reason="unauthenticated"})",
    R"(berth_requests_rejected_total{model_name="m",reason="other"})",
    R"(berth_time_to_first_token_seconds_bucket{model_name="m",le="0.001"})",
    R"(berth_time_to_first_token_seconds_bucket{model_name="m",le="0.1"})",
    R"(berth_time_to_first_token_seconds_bucket{model_name="m",le="2560"})",
    R"(berth_time_to_first_token_seconds_bucket{model_name="m",le="+Inf"})",
    R"(vllm:time_to_first_token_seconds_count{model_name="m"})",
    R"(berth_inter_token_latency_seconds_bucket{model_name="m",le="0.0025"})",
    R"(vllm:inter_token_latency_seconds_sum{model_name="m"})",
    R"(berth_request_time_per_output_token_seconds_bucket{model_name="m",le="80"})",
    R"(vllm:request_time_per_output_token_seconds_count{model_name="m"})",
    R"(berth_e2e_request_latency_seconds_bucket{model_name="m",le="7680"})",
    R"(vllm:e2e_request_latency_seconds_count{model_name="m"})",
    R"(berth_request_queue_time_seconds_count{model_name="m"})",
    R"(vllm:request_queue_time_seconds_count{model_name="m"})",
    R"(berth_request_prefill_time_seconds_count{model_name="m"})",
    R"(vllm:request_prefill_time_seconds_count{model_name="m"})",
    R"(berth_request_decode_time_seconds_count{model_name="m"})",
    R"(vllm:request_decode_time_seconds_count{model_name="m"})",
    R"(berth_request_prompt_tokens_count{model_name="m"})",
    R"(vllm:request_prompt_tokens_count{model_name="m"})",
    R"(berth_request_generation_tokens_count{model_name="m"})",
    R"(vllm:request_generation_tokens_count{model_name="m"})",
    R"(berth_step_seconds_count{model_name="m",phase="prefill"})",
    R"(berth_step_seconds_count{model_name="m",phase="decode"})",
    R"(berth_step_seconds_count{model_name="m",phase="mixed"})",
    R"(berth_step_rows_count{model_name="m",phase="decode"})",
    R"(berth_step_tokens_bucket{model_name="m",phase="mixed",le="16384"})",
    R"(vllm:iteration_tokens_total_count{model_name="m"})",
    R"(grpc_server_handled_total{grpc_type="server_stream",grpc_service="berth.v1.Inference",grpc_method="Generate",)"
    R"(grpc_code="OK"})",
    R"(grpc_server_handled_total{grpc_type="unary",grpc_service="berth.v1.Control",grpc_method="GetLoad",)"
    R"(grpc_code="Unauthenticated"})",
    R"(grpc_server_handling_seconds_count{grpc_type="unary",grpc_service="berth.v1.Inference",grpc_method="Complete"})",
    R"(grpc_server_handling_seconds_count{grpc_type="server_stream",grpc_service="vllm.grpc.engine.VllmEngine",)"
    R"(grpc_method="Generate"})",
};

TEST(MetricsTest, EverySeriesExistsAtZero) {
  const SeriesMap series = Scrape(Metrics(kOptions));
  for (const char* name : kSeries) EXPECT_THAT(series, Contains(Key(name)));
  for (const auto& [name, value] : series) {
    EXPECT_EQ(value, name == R"(berth_health{model_name="m",probe="liveness"})" ? 1 : 0) << name;
  }
}

TEST(MetricsTest, WithoutAliasesNothingIsNamedAfterVllm) {
  for (const auto& [name, value] : Scrape(Metrics({.model_name = "m", .vllm_aliases = false}))) {
    EXPECT_FALSE(absl::StartsWith(name, "vllm")) << name;  // a gateway's service has the word in its name
  }
}

TEST(MetricsTest, AFinishedRequestIsTakenApart) {
  Metrics metrics(kOptions);
  metrics.OnQueued(70);
  const RequestTimes times = TimesOf(absl::Seconds(1), absl::Seconds(2), absl::Seconds(8));
  metrics.OnFirstToken(times);
  metrics.OnFinished(FinishReason::kLength, times, 70, 5);
  const SeriesMap series = Scrape(metrics);
  EXPECT_EQ(series.at(R"(berth_requests_accepted_total{model_name="m"})"), 1);
  EXPECT_EQ(series.at(R"(berth_requests_accepted_prompt_tokens_total{model_name="m"})"), 70);
  EXPECT_EQ(series.at(R"(berth_requests_finished_total{model_name="m",finish_reason="length"})"), 1);
  EXPECT_EQ(series.at(R"(vllm:request_success_total{model_name="m",finished_reason="length"})"), 1);
  for (const char* prefix : {"berth_", "vllm:"}) {
    const auto sum = [&](const char* name) { return series.at(absl::StrCat(prefix, name, "_sum{model_name=\"m\"}")); };
    EXPECT_EQ(sum("time_to_first_token_seconds"), 3);
    EXPECT_EQ(sum("e2e_request_latency_seconds"), 11);
    EXPECT_EQ(sum("request_queue_time_seconds"), 1);
    EXPECT_EQ(sum("request_prefill_time_seconds"), 2);
    EXPECT_EQ(sum("request_decode_time_seconds"), 8);
    EXPECT_EQ(sum("request_time_per_output_token_seconds"), 2);  // 8 s for the 4 tokens after the first
    EXPECT_EQ(sum("request_prompt_tokens"), 70);
    EXPECT_EQ(sum("request_generation_tokens"), 5);
  }
  // Bounds are inclusive, and counts cumulative.
  EXPECT_EQ(series.at(R"(berth_request_prefill_time_seconds_bucket{model_name="m",le="1.5"})"), 0);
  EXPECT_EQ(series.at(R"(berth_request_prefill_time_seconds_bucket{model_name="m",le="2"})"), 1);
  EXPECT_EQ(series.at(R"(berth_request_prefill_time_seconds_bucket{model_name="m",le="+Inf"})"), 1);
}

TEST(MetricsTest, ARequestThatNeverRanWaitedAllItsLife) {
  Metrics metrics(kOptions);
  RequestTimes times;
  times.arrival = absl::FromUnixSeconds(1000);
  times.finished = absl::FromUnixSeconds(1007);
  metrics.OnFinished(FinishReason::kDeadline, times, 10, 0);
  const SeriesMap series = Scrape(metrics);
  EXPECT_EQ(series.at(R"(berth_request_queue_time_seconds_sum{model_name="m"})"), 7);
  EXPECT_EQ(series.at(R"(berth_request_prefill_time_seconds_count{model_name="m"})"), 0);
  EXPECT_EQ(series.at(R"(berth_request_decode_time_seconds_count{model_name="m"})"), 0);
  EXPECT_EQ(series.at(R"(vllm:request_success_total{model_name="m",finished_reason="abort"})"), 1);
}

TEST(MetricsTest, AClockThatIsSetBackDoesNotLowerASum) {
  Metrics metrics(kOptions);
  metrics.OnInterToken(absl::Seconds(-3));
  const SeriesMap series = Scrape(metrics);
  EXPECT_EQ(series.at(R"(berth_inter_token_latency_seconds_sum{model_name="m"})"), 0);
  EXPECT_EQ(series.at(R"(berth_inter_token_latency_seconds_count{model_name="m"})"), 1);
}

TEST(MetricsTest, StepsAreToldApartByPhaseAndSummedForVllm) {
  Metrics metrics(kOptions);
  metrics.OnStep({.duration = absl::Milliseconds(500), .num_tokens = 100, .num_rows = 2, .num_decode_rows = 0});
  metrics.OnStep({.duration = absl::Milliseconds(250), .num_tokens = 3, .num_rows = 3, .num_decode_rows = 3});
  metrics.OnStep({.duration = absl::Milliseconds(250), .num_tokens = 40, .num_rows = 5, .num_decode_rows = 4});
  const SeriesMap series = Scrape(metrics);
  EXPECT_EQ(series.at(R"(berth_step_tokens_sum{model_name="m",phase="prefill"})"), 100);
  EXPECT_EQ(series.at(R"(berth_step_tokens_sum{model_name="m",phase="decode"})"), 3);
  EXPECT_EQ(series.at(R"(berth_step_tokens_sum{model_name="m",phase="mixed"})"), 40);
  EXPECT_EQ(series.at(R"(berth_step_rows_sum{model_name="m",phase="mixed"})"), 5);
  EXPECT_EQ(series.at(R"(berth_step_seconds_sum{model_name="m",phase="prefill"})"), 0.5);
  EXPECT_EQ(series.at(R"(vllm:iteration_tokens_total_sum{model_name="m"})"), 143);
  EXPECT_EQ(series.at(R"(vllm:iteration_tokens_total_bucket{model_name="m",le="64"})"), 2);
}

TEST(MetricsTest, SeveralOutputsAreGeneratedSideBySide) {
  Metrics metrics(kOptions);
  const RequestTimes times = TimesOf(absl::Seconds(1), absl::Seconds(2), absl::Seconds(8));
  metrics.OnFinished(FinishReason::kLength, times, 70, /*completion_tokens=*/20, /*num_outputs=*/4);
  const SeriesMap series = Scrape(metrics);
  EXPECT_EQ(series.at(R"(vllm:request_time_per_output_token_seconds_sum{model_name="m"})"), 2)
      << "8 s for 4 tokens of each";
}

TEST(MetricsTest, PausesForAClientAreNoTimeOfItsTokensAndCache) {
  Metrics metrics(kOptions);
  RequestTimes times = TimesOf(absl::Seconds(1), absl::Seconds(2), absl::Seconds(8));
  times.paused = absl::Seconds(4);
  metrics.OnFinished(FinishReason::kLength, times, 70, 5);
  const SeriesMap series = Scrape(metrics);
  EXPECT_EQ(series.at(R"(berth_cache_lease_age_seconds_sum{model_name="m"})"), 6);
  EXPECT_EQ(series.at(R"(berth_request_time_per_output_token_seconds_sum{model_name="m"})"), 1);
  EXPECT_EQ(series.at(R"(berth_request_decode_time_seconds_sum{model_name="m"})"), 8);
}

TEST(MetricsTest, ReasonsAndRpcsStayBounded) {
  Metrics metrics(kOptions);
  const size_t before = Scrape(metrics).size();
  metrics.OnRejected(RefusalReason::kQueueFull);
  metrics.OnRejected(RefusalReason::kOther);
  metrics.OnRpc("berth.v1.Inference", "Generate", grpc::StatusCode::CANCELLED, absl::Seconds(3));
  metrics.OnRpc("evil.Service", "Method", grpc::StatusCode::OK, absl::Seconds(3));
  const SeriesMap series = Scrape(metrics);
  EXPECT_EQ(series.size(), before);
  EXPECT_EQ(series.at(R"(berth_requests_rejected_total{model_name="m",reason="queue_full"})"), 1);
  EXPECT_EQ(series.at(R"(berth_requests_rejected_total{model_name="m",reason="other"})"), 1);
  EXPECT_EQ(series.at(R"(grpc_server_handled_total{grpc_type="server_stream",grpc_service="berth.v1.Inference",)"
                      R"(grpc_method="Generate",grpc_code="Canceled"})"),
            1);
  EXPECT_EQ(series.at(R"(grpc_server_handling_seconds_sum{grpc_type="server_stream",)"
                      R"(grpc_service="berth.v1.Inference",grpc_method="Generate"})"),
            3);
}

TEST(MetricsTest, CountsWhileItIsScraped) {
  Metrics metrics(kOptions);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 1000; ++i) metrics.OnInterToken(absl::Milliseconds(250));
    });
  }
  for (int i = 0; i < 20; ++i) Scrape(metrics);
  for (std::thread& thread : threads) thread.join();
  const SeriesMap series = Scrape(metrics);
  EXPECT_EQ(series.at(R"(berth_inter_token_latency_seconds_count{model_name="m"})"), 4000);
  EXPECT_EQ(series.at(R"(berth_inter_token_latency_seconds_sum{model_name="m"})"), 1000);
}

}  // namespace
}  // namespace berth
