#include "client/load/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>

namespace berth::cli {
namespace {

TEST(PoissonArrivals, GapsHaveTheMeanAndDeviationOfTheRate) {
  constexpr int kNumArrivals = 100000;
  constexpr double kRate = 20;
  PoissonArrivals arrivals(kRate, 1);
  double sum_of_squares = 0;
  absl::Duration last = absl::ZeroDuration();
  for (int i = 0; i < kNumArrivals; ++i) {
    const absl::Duration next = arrivals.Next();
    ASSERT_GE(next, last);
    const double gap = absl::ToDoubleSeconds(next - last);
    sum_of_squares += gap * gap;
    last = next;
  }
  const double mean = absl::ToDoubleSeconds(last) / kNumArrivals;
  const double deviation = std::sqrt(sum_of_squares / kNumArrivals - mean * mean);
  // The mean of n gaps has a standard error of 1 / (rate * sqrt(n)): 5 of them. The deviation's is about 1.4 times
  // that.
  const double tolerance = 5 / (kRate * std::sqrt(kNumArrivals));
  EXPECT_NEAR(mean, 1 / kRate, tolerance);
  EXPECT_NEAR(deviation, 1 / kRate, 1.5 * tolerance);
}

TEST(PoissonArrivals, TheSeedDecides) {
  PoissonArrivals one(10, 1), same(10, 1), other(10, 2);
  const absl::Duration first = one.Next();
  EXPECT_EQ(first, same.Next());
  EXPECT_NE(first, other.Next());
}

}  // namespace
}  // namespace berth::cli
