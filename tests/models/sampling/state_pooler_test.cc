// The sums of pooled tokens: each in its own row, in order, and with the same bits whatever the chunks.
#include "models/sampling/state_pooler.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace berth {
namespace {

constexpr int64_t kTokens = 40;
constexpr int64_t kHidden = 5;

// Numbers whose sums depend on the order, even in float64.
at::Tensor States() {
  const at::Tensor x = at::arange(1, kTokens * kHidden + 1, at::kFloat);
  return (x.reciprocal() * (x.remainder(3) - 1) * x.remainder(7).mul(6).exp()).view({kTokens, kHidden});
}

std::vector<double> SumOf(const at::Tensor& states) {
  std::vector<double> sum(kHidden, 0);
  for (int64_t t = 0; t < states.size(0); ++t) {
    for (int64_t d = 0; d < kHidden; ++d) sum[d] += states[t][d].item<float>();
  }
  return sum;
}

// The sum over `states`, `chunk` tokens a step.
std::vector<double> PoolInChunks(const at::Tensor& states, int64_t chunk) {
  StatePooler pooler;
  StepResult result;
  result.rows.resize(1);
  std::vector<double> sum;
  for (int64_t start = 0; start < states.size(0); start += chunk) {
    const int64_t count = std::min(chunk, states.size(0) - start);
    StepPlan plan;
    plan.rows.push_back({.num_pooled = count, .pooled = sum});
    pooler.Begin(plan, &result);
    pooler.Take(states.narrow(0, start, count), 0);
    sum = result.rows[0].pooled;
  }
  return sum;
}

TEST(StatePoolerTest, ChunksChangeNoBit) {
  const at::Tensor states = States();
  ASSERT_NE(SumOf(states), SumOf(states.flip(0))) << "the order does not matter";
  for (const int64_t chunk : {1, 3, 7, 39, 40}) EXPECT_EQ(PoolInChunks(states, chunk), SumOf(states)) << chunk;
}

TEST(StatePoolerTest, EachRowHasItsOwnSumWhateverThePieces) {
  const at::Tensor states = States();
  const std::vector<double> before = SumOf(states.narrow(0, 0, 10));
  StepPlan plan;
  plan.rows.push_back({.num_pooled = 4});
  plan.rows.push_back({});  // pools nothing
  plan.rows.push_back({.num_pooled = 30, .pooled = before});
  StepResult result;
  result.rows.resize(3);
  result.rows[1].pooled = {1, 2};  // of the last step
  StatePooler pooler;
  pooler.Begin(plan, &result);
  const at::Tensor packed = at::cat({states.narrow(0, 0, 4), states.narrow(0, 10, 30)});
  for (const auto& [first, count] : {std::pair{0, 3}, {3, 2}, {5, 29}}) {
    pooler.Take(packed.narrow(0, first, count), first);
  }
  EXPECT_EQ(result.rows[0].pooled, SumOf(states.narrow(0, 0, 4)));
  EXPECT_TRUE(result.rows[1].pooled.empty());
  EXPECT_EQ(result.rows[2].pooled, SumOf(states));
}

TEST(StatePoolerTest, TakesTheTypeOfTheModel) {
  StepPlan plan;
  plan.rows.push_back({.num_pooled = 2});
  StepResult result;
  result.rows.resize(1);
  StatePooler pooler;
  pooler.Begin(plan, &result);
  pooler.Take(at::full({2, 3}, 1.5, at::kBFloat16), 0);
  EXPECT_EQ(result.rows[0].pooled, std::vector<double>(3, 3.0));
}

}  // namespace
}  // namespace berth
