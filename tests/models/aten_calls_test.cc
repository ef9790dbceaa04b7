// What the watcher of ATen's calls sees: a call that only the CPU accepts, and only that.
#include "tests/models/aten_calls.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

TEST(AtenCallsTest, FindsMixedTypes) {
  const at::Tensor x = at::ones({2, 8}, at::kBFloat16);
  const at::Tensor weight = at::ones({8});
  const AtenCalls calls;
  at::layer_norm(x.to(at::kFloat), {8}, weight);
  EXPECT_TRUE(calls.mixed().empty());
  at::layer_norm(x, {8}, weight);
  ASSERT_FALSE(calls.mixed().empty());
  EXPECT_EQ(calls.mixed()[0], "aten::layer_norm");
  EXPECT_EQ(calls.Count("aten::layer_norm"), 2);
}

}  // namespace
}  // namespace berth
