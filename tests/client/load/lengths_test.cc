#include "client/load/lengths.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace berth::cli {
namespace {

LengthDistribution Parsed(const std::string& text) {
  auto lengths = LengthDistribution::Parse(text);
  EXPECT_TRUE(lengths.ok()) << text << ": " << lengths.status();
  return lengths.ok() ? *lengths : LengthDistribution();
}

TEST(LengthDistribution, FixedIsAlwaysTheSame) {
  std::mt19937_64 random(1);
  EXPECT_EQ(Parsed("fixed:128").Sample(random), 128);
  EXPECT_EQ(LengthDistribution::Fixed(3).Sample(random), 3);
  EXPECT_EQ(LengthDistribution::Fixed(3).text(), "fixed:3");
}

TEST(LengthDistribution, UniformReachesBothEnds) {
  std::mt19937_64 random(1);
  const LengthDistribution lengths = Parsed("uniform:2:4");
  std::set<int64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(lengths.Sample(random));
  EXPECT_EQ(seen, (std::set<int64_t>{2, 3, 4}));
}

TEST(LengthDistribution, LognormalHasTheMeanOfTheLengthItself) {
  std::mt19937_64 random(1);
  const LengthDistribution lengths = Parsed("lognormal:200:0.5");
  constexpr int kNumSamples = 100000;
  double sum = 0;
  for (int i = 0; i < kNumSamples; ++i) sum += static_cast<double>(lengths.Sample(random));
  // Deviation of a length: mean * sqrt(exp(sigma^2) - 1) = 107; 5 standard errors of the mean.
  EXPECT_NEAR(sum / kNumSamples, 200, 5 * 107 / std::sqrt(kNumSamples));
}

TEST(LengthDistribution, LognormalStaysWithinOneAndMax) {
  std::mt19937_64 random(1);
  const LengthDistribution lengths = Parsed("lognormal:10:3:50");
  std::set<int64_t> seen;
  for (int i = 0; i < 10000; ++i) seen.insert(lengths.Sample(random));
  EXPECT_EQ(*seen.begin(), 1);
  EXPECT_EQ(*seen.rbegin(), 50);
}

TEST(LengthDistribution, RefusesWhatIsMalformed) {
  for (const char* text : {"",
                           "128",
                           "fixed",
                           "fixed:",
                           "fixed:0",
                           "fixed:-1",
                           "fixed:1.5",
                           "fixed:1:2",
                           "fixed:3000000000",
                           "uniform:1",
                           "uniform:5:4",
                           "uniform:0:4",
                           "uniform:1:2:3",
                           "uniform:a:b",
                           "lognormal:10",
                           "lognormal:0:1",
                           "lognormal:nan:1",
                           "lognormal:10:-1",
                           "lognormal:10:nan",
                           "lognormal:10:11",
                           "lognormal:10:1:0",
                           "lognormal:10:1:2:3",
                           "normal:1:2",
                           "Fixed:1"}) {
    EXPECT_EQ(LengthDistribution::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(LengthDistribution, MixesByWeight) {
  const auto lengths = LengthDistribution::Parse("3*fixed:10+1*uniform:20:21");
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  std::mt19937_64 random(1);
  int short_ones = 0;
  for (int i = 0; i < 4000; ++i) {
    const int64_t length = lengths->Sample(random);
    EXPECT_TRUE(length == 10 || length == 20 || length == 21) << length;
    short_ones += length == 10;
  }
  EXPECT_NEAR(short_ones, 3000, 150);
  EXPECT_FALSE(LengthDistribution::Parse("0*fixed:1").ok());
  EXPECT_FALSE(LengthDistribution::Parse("1*fixed:1+fixed:2").ok());
}

TEST(LengthDistribution, ErrorsSayWhatWasExpected) {
  EXPECT_EQ(LengthDistribution::Parse("normal:1:2").status().message(),
            "expected fixed:N, uniform:MIN:MAX, lognormal:MEAN:SIGMA[:MAX], or several of them as W*LENGTHS+W*LENGTHS");
  EXPECT_EQ(LengthDistribution::Parse("uniform:5:4").status().message(), "min 5 is above max 4");
  EXPECT_EQ(LengthDistribution::Parse("fixed:x").status().message(),
            "length 'x' is not a whole number from 1 to 2147483647");
}

}  // namespace
}  // namespace berth::cli
