#include "client/load/statistics.h"

#include <gtest/gtest.h>

#include <numeric>

namespace berth::cli {
namespace {

TEST(Statistics, PercentilesAreLinearBetweenNeighbours) {
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(Percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.25), 1.75);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.9), 3.7);
  EXPECT_DOUBLE_EQ(Percentile(values, 1), 4);
}

// numpy.percentile(numpy.arange(1, 101), [50, 90, 95, 99]) -> 50.5, 90.1, 95.05, 99.01
TEST(Statistics, SummaryOfOneToAHundred) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1);
  const Summary summary = Summarize(values);
  EXPECT_EQ(summary.count, 100);
  EXPECT_DOUBLE_EQ(summary.mean, 50.5);
  EXPECT_DOUBLE_EQ(summary.p50, 50.5);
  EXPECT_DOUBLE_EQ(summary.p90, 90.1);
  EXPECT_DOUBLE_EQ(summary.p95, 95.05);
  EXPECT_DOUBLE_EQ(summary.p99, 99.01);
  EXPECT_DOUBLE_EQ(summary.max, 100);
}

TEST(Statistics, OneValueIsEveryPercentile) {
  const Summary expected = {.count = 1, .mean = 3, .p50 = 3, .p90 = 3, .p95 = 3, .p99 = 3, .max = 3};
  EXPECT_EQ(Summarize({3}), expected);
}

TEST(Statistics, NothingIsAllZero) { EXPECT_EQ(Summarize({}), Summary()); }

}  // namespace
}  // namespace berth::cli
