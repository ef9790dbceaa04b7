#include "client/load/plots.h"

#include <gtest/gtest.h>

#include <numeric>

#include "client/load/report_page.h"

namespace berth::cli {
namespace {

RequestRecord Record(double start, double first, double gap, int tokens) {
  RequestRecord record;
  record.intended = record.sent = absl::Seconds(start);
  record.first_token = absl::Seconds(first);
  record.gap_seconds.assign(tokens - 1, static_cast<float>(gap));
  record.last_token = record.end = absl::Seconds(first + gap * (tokens - 1));
  record.output_tokens = tokens;
  return record;
}

TEST(Histogram, CountsEachMeasurementOnce) {
  const Histogram histogram = MakeHistogram({0, 1e-7, 0.001, 0.01, 0.01, 2});
  EXPECT_EQ(histogram.edges.size(), histogram.counts.size() + 1);
  EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(), int64_t{0}), 6);
  EXPECT_EQ(histogram.counts.front(), 2);
  EXPECT_EQ(histogram.counts.back(), 1);
  EXPECT_TRUE(MakeHistogram({}).edges.empty());
  EXPECT_EQ(MakeHistogram({0.5, 0.5}).counts.front(), 2);
}

TEST(Course, PutsEventsWhereTheyFell) {
  // Tokens at 0.5, 1.5, 2.5 s; then a request that fails at 3 s.
  std::vector<RequestRecord> records = {Record(0, 0.5, 1, 3), RequestRecord()};
  records[1].code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  records[1].end = absl::Seconds(3);
  const Course course = MakeCourse(records, absl::Seconds(3));
  EXPECT_EQ(course.interval_seconds, 0.1);
  ASSERT_EQ(course.ttft_p50.size(), 30u);
  EXPECT_NEAR(course.ttft_p50[5], 0.5, 1e-9);
  EXPECT_EQ(course.ttft_p50[6], -1);
  const auto sum = [](const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); };
  EXPECT_NEAR(sum(course.output_tokens_per_second) * 0.1, 3, 1e-6);
  EXPECT_NEAR(sum(course.requests_per_second) * 0.1, 1, 1e-6);
  EXPECT_NEAR(course.failures_per_second.back() * 0.1, 1, 1e-6);
}

TEST(Course, ARestOfTheRunIsNoPeak) {
  // A token each 0.1 s. The run ends 0.02 s after the last: 10.2 intervals.
  const std::vector<RequestRecord> records = {Record(0, 0, 0.1, 11)};
  const Course course = MakeCourse(records, absl::Seconds(1.02));
  ASSERT_EQ(course.output_tokens_per_second.size(), 10u);
  for (const double rate : course.output_tokens_per_second) EXPECT_LE(rate, 2 / 0.1);
  EXPECT_NEAR(course.output_tokens_per_second.back(), 2 / 0.12, 1e-6);
}

TEST(Course, ARunShorterThanAnIntervalIsOne) {
  const Course course = MakeCourse({Record(0, 0.01, 0.01, 2)}, absl::Seconds(0.04));
  ASSERT_EQ(course.output_tokens_per_second.size(), 1u);
  EXPECT_NEAR(course.output_tokens_per_second[0], 2 / 0.04, 1e-6);
  EXPECT_EQ(MakeCourse({}, absl::ZeroDuration()).output_tokens_per_second, std::vector<double>{0});
}

TEST(ReportPage, TextsDoNotEndItsScript) {
  nlohmann::ordered_json report = {{"run", {{"server", "</script><b>"}}}};
  const std::string page = ReportPage(report);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("{{REPORT}}"), std::string::npos);
  EXPECT_NE(page.find("\\u003c/script>\\u003cb>"), std::string::npos) << page.substr(0, 300);
}

}  // namespace
}  // namespace berth::cli
