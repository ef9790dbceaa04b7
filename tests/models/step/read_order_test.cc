#include "models/step/read_order.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

TEST(ReadOrderTest, SaysWhatFollowedTheLastTime) {
  const char memory[4] = {};
  const ReadRange a = {memory, 10}, b = {memory + 1, 20}, c = {memory + 2, 30};
  ReadOrder order;
  EXPECT_EQ(order.Follow(a).begin, nullptr);
  EXPECT_EQ(order.Follow(b).size_bytes, 0);
  EXPECT_EQ(order.Follow(c).begin, nullptr);
  // The second step follows the first.
  EXPECT_EQ(order.Follow(a).begin, b.begin);
  EXPECT_EQ(order.Follow(b).size_bytes, c.size_bytes);
  EXPECT_EQ(order.Follow(c).begin, a.begin);
  // Another order replaces what it differs in.
  EXPECT_EQ(order.Follow(b).begin, c.begin);
  EXPECT_EQ(order.Follow(a).begin, b.begin);
  EXPECT_EQ(order.Follow(c).begin, b.begin);
  EXPECT_EQ(order.Follow(b).begin, a.begin);
}

}  // namespace
}  // namespace berth
