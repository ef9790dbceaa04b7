#include "server/process/line_limit.h"

#include <gtest/gtest.h>

#include "tests/testing/fake_clock.h"

namespace berth {
namespace {

TEST(LineLimit, OneKeyGetsOneLineInTheIntervalWhichCountsThoseLeftOut) {
  FakeClock clock;
  LineLimit limit({.interval = absl::Seconds(10), .now = [&] { return clock.Now(); }});
  EXPECT_EQ(limit.Admit("a"), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit.Admit("a"), std::nullopt);
  EXPECT_EQ(limit.Admit("b"), "") << "another key has lines of its own";
  clock.Advance(absl::Seconds(10));
  EXPECT_EQ(limit.Admit("a"), " unlogged_before=5");
  EXPECT_EQ(limit.Admit("a"), std::nullopt);
  clock.Advance(absl::Seconds(20));
  EXPECT_EQ(limit.Admit("b"), "");
}

TEST(LineLimit, RemembersTheLatestKeysOnly) {
  LineLimit limit({.max_keys = 2});
  for (const char* key : {"a", "b", "c"}) EXPECT_EQ(limit.Admit(key), "");
  EXPECT_EQ(limit.Admit("c"), std::nullopt);
  EXPECT_EQ(limit.Admit("a"), "") << "forgotten";
}

}  // namespace
}  // namespace berth
