#include "client/load/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace berth::cli {
namespace {

using ::testing::HasSubstr;

// Sent 10 ms late, first token 100 ms after the intended start, three tokens with gaps of 20 and 40 ms, end 5 ms later.
RequestRecord Ok(int64_t index, absl::Duration intended) {
  RequestRecord record;
  record.index = index;
  record.intended = intended;
  record.sent = intended + absl::Milliseconds(10);
  record.first_token = intended + absl::Milliseconds(100);
  record.last_token = intended + absl::Milliseconds(160);
  record.end = intended + absl::Milliseconds(165);
  record.gap_seconds = {0.02f, 0.04f};
  record.prompt_tokens = 7;
  record.output_tokens = 3;
  return record;
}

RequestRecord Failed(grpc::StatusCode code, const std::string& error) {
  RequestRecord record;
  record.code = code;
  record.error = error;
  record.end = absl::Milliseconds(1);
  return record;
}

TEST(Report, LatenciesCountFromTheIntendedStart) {
  const Report report = BuildReport({Ok(0, absl::Seconds(1))}, absl::Seconds(2), {});
  EXPECT_NEAR(report.ttft_seconds.mean, 0.100, 1e-9);
  EXPECT_NEAR(report.tpot_seconds.mean, 0.030, 1e-9);
  EXPECT_NEAR(report.e2e_seconds.mean, 0.165, 1e-9);
  EXPECT_NEAR(report.send_lag_seconds.mean, 0.010, 1e-9);
  EXPECT_EQ(report.itl_seconds.count, 2);
  EXPECT_NEAR(report.itl_seconds.max, 0.040, 1e-6);  // gaps are kept as float
}

TEST(Report, RatesAreThoseOfRequestsThatEndedOk) {
  std::vector<RequestRecord> records = {
      Ok(0, absl::ZeroDuration()), Ok(1, absl::Seconds(1)), Failed(grpc::StatusCode::RESOURCE_EXHAUSTED, "full"),
      Failed(grpc::StatusCode::RESOURCE_EXHAUSTED, "full still"), Failed(grpc::StatusCode::CANCELLED, "by us")};
  records.back().cancelled = true;
  const Report report = BuildReport(records, absl::Seconds(4), {});
  EXPECT_EQ(report.num_ok, 2);
  EXPECT_EQ(report.num_failed, 2);
  EXPECT_EQ(report.num_cancelled, 1);
  EXPECT_EQ(report.errors.at("RESOURCE_EXHAUSTED").count, 2);
  EXPECT_EQ(report.errors.at("RESOURCE_EXHAUSTED").first_message, "full");
  EXPECT_EQ(report.PerSecond(report.num_ok), 0.5);
  EXPECT_EQ(report.PerSecond(report.prompt_tokens), 3.5);
  EXPECT_EQ(report.PerSecond(report.output_tokens), 1.5);
  EXPECT_EQ(report.e2e_seconds.count, 2);
}

// A stream of one token each `gap` from `first` on.
RequestRecord Stream(absl::Duration first, absl::Duration gap, int num_tokens) {
  RequestRecord record;
  record.first_token = first;
  record.last_token = first + (num_tokens - 1) * gap;
  record.end = record.last_token;
  record.gap_seconds.assign(num_tokens - 1, static_cast<float>(absl::ToDoubleSeconds(gap)));
  record.output_tokens = num_tokens;
  return record;
}

TEST(Report, TheSteadyRateIsOfTheTimeInWhichAllStreamed) {
  // The first streams alone for a second, faster than the second ever does.
  RequestRecord early = Stream(absl::ZeroDuration(), absl::Milliseconds(10), 101);
  for (int i = 0; i < 20; ++i) early.gap_seconds.push_back(0.1f);
  early.output_tokens += 20;
  early.last_token += absl::Seconds(2);
  const RequestRecord late = Stream(absl::Seconds(1), absl::Milliseconds(50), 100);
  const Report report = BuildReport({early, late}, absl::Seconds(6), {});
  ASSERT_TRUE(report.steady_tokens_per_second.has_value());
  EXPECT_NEAR(*report.steady_tokens_per_second, 10 + 20, 1e-3);
  EXPECT_NEAR(ReportJson(report)["throughput"]["steady_tokens_per_second"].get<double>(), 30, 1e-3);
  EXPECT_THAT(ReportText(report), HasSubstr("steady     30.0 output tokens/s"));
}

TEST(Report, TheSteadyRateLeavesOutWhatTheFirstMessageBrought) {
  // Three tokens at once, then one each 10 ms.
  RequestRecord merged = Stream(absl::ZeroDuration(), absl::Milliseconds(10), 11);
  merged.gap_seconds.insert(merged.gap_seconds.begin(), {0, 0});
  merged.output_tokens += 2;
  EXPECT_NEAR(*BuildReport({merged}, absl::Seconds(1), {}).steady_tokens_per_second, 100, 1e-2);
}

TEST(Report, ThereIsNoSteadyRateUnlessAllStreamedAtOnce) {
  const RequestRecord first = Stream(absl::ZeroDuration(), absl::Milliseconds(10), 10);
  const RequestRecord second = Stream(absl::Seconds(1), absl::Milliseconds(10), 10);
  EXPECT_FALSE(BuildReport({first, second}, absl::Seconds(2), {}).steady_tokens_per_second.has_value());
  EXPECT_FALSE(BuildReport({first, Failed(grpc::StatusCode::INTERNAL, "")}, absl::Seconds(2), {})
                   .steady_tokens_per_second.has_value());
  EXPECT_TRUE(ReportJson(BuildReport({}, absl::Seconds(1), {}))["throughput"]["steady_tokens_per_second"].is_null());
}

TEST(Report, GoodputNeedsEveryLimit) {
  const RequestRecord record = Ok(0, absl::ZeroDuration());
  EXPECT_TRUE(WithinLimits(record, {}));
  EXPECT_TRUE(WithinLimits(record, {.ttft = absl::Milliseconds(100), .e2e = absl::Milliseconds(165)}));
  EXPECT_FALSE(WithinLimits(record, {.ttft = absl::Milliseconds(99), .e2e = absl::Milliseconds(165)}));
  EXPECT_FALSE(WithinLimits(record, {.e2e = absl::Milliseconds(164)}));
  EXPECT_TRUE(WithinLimits(record, {.tpot = absl::Milliseconds(30)}));
  EXPECT_FALSE(WithinLimits(record, {.tpot = absl::Milliseconds(29)}));
}

TEST(Report, TheItlLimitHoldsForTheLargestGap) {
  const RequestRecord record = Ok(0, absl::ZeroDuration());
  EXPECT_TRUE(WithinLimits(record, {.itl = absl::Milliseconds(41)}));
  EXPECT_FALSE(WithinLimits(record, {.itl = absl::Milliseconds(39)}));
}

TEST(Report, AFailedRequestIsNeverGood) { EXPECT_FALSE(WithinLimits(Failed(grpc::StatusCode::INTERNAL, ""), {})); }

TEST(Report, JsonHoldsEveryFigure) {
  Report report = BuildReport({Ok(0, absl::ZeroDuration()), Failed(grpc::StatusCode::INTERNAL, "oops")},
                              absl::Seconds(2), {.ttft = absl::Milliseconds(500)});
  report.run = {
      .server = "s", .model = "m", .concurrency = 8, .prompts = "fixed:7", .output_tokens = "fixed:3", .seed = 3};
  report.verified = true;
  report.num_references = 1;
  const auto json = ReportJson(report);
  EXPECT_EQ(json["run"]["loop"], "closed");
  EXPECT_EQ(json["run"]["concurrency"], 8);
  EXPECT_EQ(json["run"]["seed"], 3);
  EXPECT_EQ(json["elapsed_seconds"], 2.0);
  EXPECT_EQ(json["requests"]["ok"], 1);
  EXPECT_EQ(json["requests"]["failed"], 1);
  EXPECT_EQ(json["errors"][0]["code"], "INTERNAL");
  EXPECT_EQ(json["errors"][0]["first_message"], "oops");
  EXPECT_EQ(json["throughput"]["output_tokens_per_second"], 1.5);
  EXPECT_EQ(json["goodput"]["limits"]["ttft_seconds"], 0.5);
  EXPECT_EQ(json["goodput"]["requests_per_second"], 0.5);
  EXPECT_EQ(json["verification"]["faulty_streams"], 0);
  for (const char* name : {"ttft", "itl", "tpot", "e2e", "send_lag"}) {
    for (const char* figure : {"count", "mean", "p50", "p90", "p95", "p99", "max"}) {
      EXPECT_TRUE(json["latency_seconds"][name][figure].is_number()) << name << " " << figure;
    }
  }
}

// Beside the goodput within them: one request of the two ended OK.
TEST(Report, JsonNamesTheLimitsThatWereSet) {
  const std::vector<std::pair<GoodputLimits, const char*>> all = {{{.ttft = absl::Seconds(9)}, "ttft_seconds"},
                                                                  {{.itl = absl::Seconds(9)}, "itl_seconds"},
                                                                  {{.tpot = absl::Seconds(9)}, "tpot_seconds"},
                                                                  {{.e2e = absl::Seconds(9)}, "e2e_seconds"}};
  for (const auto& [limits, name] : all) {
    const auto goodput = ReportJson(BuildReport({Ok(0, absl::ZeroDuration()), Failed(grpc::StatusCode::INTERNAL, "")},
                                                absl::Seconds(2), limits))["goodput"];
    EXPECT_EQ(goodput["limits"], nlohmann::ordered_json({{name, 9.0}}));
    EXPECT_EQ(goodput["requests_within_limits"], 1) << name;
    EXPECT_EQ(goodput["requests_per_second"], 0.5) << name;
  }
}

TEST(Report, WhatWasNotAskedForIsNull) {
  Report report = BuildReport({}, absl::ZeroDuration(), {});
  report.run.rate = 2.5;
  const auto json = ReportJson(report);
  EXPECT_TRUE(json["goodput"].is_null());
  EXPECT_TRUE(json["verification"].is_null());
  EXPECT_EQ(json["run"]["loop"], "open");
  EXPECT_EQ(json["run"]["rate"], 2.5);
  EXPECT_EQ(json["throughput"]["requests_per_second"], 0);
}

TEST(Report, TextNamesErrorsFaultsAndLimits) {
  RequestRecord faulty = Ok(4, absl::ZeroDuration());
  faulty.faults = {"lost it"};
  Report report = BuildReport({faulty, Failed(grpc::StatusCode::INTERNAL, "oops")}, absl::Seconds(2),
                              {.tpot = absl::Milliseconds(50)});
  report.verified = true;
  const std::string text = ReportText(report);
  EXPECT_THAT(text, HasSubstr("1 INTERNAL: oops"));
  EXPECT_THAT(text, HasSubstr("request 4: lost it"));
  EXPECT_THAT(text, HasSubstr("goodput    0.50 requests/s: 1 of 2 within tpot <= 50ms"));
  EXPECT_THAT(text, HasSubstr("TTFT        100.00    100.00"));
}

}  // namespace
}  // namespace berth::cli
