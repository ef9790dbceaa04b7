#include "client/load/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"

namespace berth::cli {
namespace {

using ::testing::HasSubstr;

// A server that holds up to `most` arrivals a second.
Capacity Search(double first, double most) {
  return SearchCapacity(first, [most](double rate, Probe* probe) {
    *probe = {.rate = rate, .held = rate <= most};
    return true;
  });
}

TEST(Capacity, FindsTheRateFromBelowAndFromAbove) {
  for (const double first : {0.5, 1.0, 7.0, 64.0}) {
    const Capacity capacity = Search(first, 10);
    EXPECT_EQ(capacity.outcome, CapacityOutcome::kFound) << first;
    EXPECT_LE(capacity.rate, 10) << first;
    EXPECT_GE(capacity.rate, 10 / 1.05) << first;
    EXPECT_THAT(CapacityText(capacity), HasSubstr(absl::StrFormat("capacity: %.2f arrivals/s", capacity.rate)));
  }
}

TEST(Capacity, EndsWhereNoRateHolds) {
  const Capacity capacity = Search(1, 0);
  EXPECT_EQ(capacity.outcome, CapacityOutcome::kNoRateHeld);
  EXPECT_EQ(capacity.rate, 0);
  EXPECT_THAT(CapacityText(capacity), HasSubstr("not found, as no rate held"));
  EXPECT_EQ(CapacityJson(capacity)["outcome"], "no_rate_held");
  EXPECT_LE(capacity.probes.size(), 10u);
}

TEST(Capacity, SaysThatThereIsNoLimitWhereEachRateHolds) {
  const Capacity capacity = Search(3e5, 1e9);
  EXPECT_EQ(capacity.outcome, CapacityOutcome::kEachRateHeld);
  EXPECT_EQ(capacity.rate, 6e5);
  EXPECT_EQ(capacity.probes.size(), 2u);
  EXPECT_THAT(CapacityText(capacity), HasSubstr("not found, as each rate up to 600000.00 arrivals/s held"));
  EXPECT_EQ(CapacityJson(capacity)["outcome"], "each_rate_held");
}

TEST(Capacity, EndsWhenItIsInterrupted) {
  int runs = 0;
  const Capacity capacity = SearchCapacity(1, [&](double, Probe*) { return ++runs < 1; });
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(capacity.outcome, CapacityOutcome::kInterrupted);
  EXPECT_TRUE(capacity.probes.empty());
}

TEST(Capacity, ARateHoldsWith99PercentWithinTheLimitsAndNoFailure) {
  Report report;
  report.num_ok = 1000;
  report.num_within_limits = 990;
  EXPECT_TRUE(ProbeOf(1, report).held);
  report.num_within_limits = 989;
  EXPECT_FALSE(ProbeOf(1, report).held);
  report.num_within_limits = 1000;
  report.num_failed = 1;
  EXPECT_FALSE(ProbeOf(1, report).held);
}

}  // namespace
}  // namespace berth::cli
