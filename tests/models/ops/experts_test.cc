// The choice of experts and the sum of what they give, against their ATen references.
#include "models/ops/experts/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

using ops::Routing;

class ExpertsTest : public KernelTest {
 protected:
  void SetUp() override { SetUpCache({{.states = {{.name = "unused", .shape = {1}}}}}); }

  ops::ExpertChoice Choose(const at::Tensor& logits, const at::Tensor& bias, const ops::RouterConfig& router) {
    const ops::ExpertChoice choice = ops::ChooseExperts(OnDevice(logits), OnDevice(bias), router, execution_);
    return {choice.experts.cpu(), choice.weights.cpu()};
  }

  void ExpectTheReference(const ops::RouterConfig& router, int64_t tokens, bool has_bias) {
    const at::Tensor logits = at::randn({tokens, router.num_experts}) * 2;
    const at::Tensor bias = has_bias ? at::randn({router.num_experts}) * 0.3 : at::Tensor();
    const ops::ExpertChoice actual = Choose(logits, bias, router);
    const ops::ExpertChoice expected = reference::ChooseExperts(logits, bias, router);
    EXPECT_TRUE(at::equal(actual.experts, expected.experts));
    EXPECT_LE((actual.weights - expected.weights).abs().max().item<float>(),
              2e-6 * expected.weights.abs().max().item<float>());
  }
};

TEST_P(ExpertsTest, ChoosesAsTheReference) {
  for (const Routing routing :
       {Routing::kSoftmax, Routing::kSoftmaxOfChosen, Routing::kSigmoid, Routing::kSigmoidOfChosen}) {
    for (const int64_t experts : {1, 5, 37, 128, 256}) {
      for (const bool renormalize : {false, true}) {
        SCOPED_TRACE(testing::Message() << "routing " << static_cast<int>(routing) << ", " << experts << " experts, "
                                        << renormalize);
        ops::RouterConfig router = {.routing = routing,
                                    .num_experts = experts,
                                    .top_k = std::min<int64_t>(experts, 6),
                                    .renormalize = renormalize,
                                    .sum_floor = 1e-20,
                                    .scale = renormalize ? 2.5 : 1};
        for (const int64_t tokens : {1, 6, 70}) ExpectTheReference(router, tokens, /*has_bias=*/tokens == 6);
        if (experts % 8 != 0) continue;
        router.num_groups = 8;
        router.top_groups = 3;
        ExpectTheReference(router, 9, /*has_bias=*/true);
      }
    }
  }
}

TEST_P(ExpertsTest, ChoosesTheFirstOfEqualOnes) {
  const ops::RouterConfig router = {.num_experts = 40, .top_k = 4};
  const ops::ExpertChoice choice = Choose(at::full({2, 40}, 1.5), {}, router);
  for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(choice.experts[1][k].item<int64_t>(), k);
  EXPECT_FLOAT_EQ(choice.weights[1][3].item<float>(), 1.0f / 40);
}

TEST_P(ExpertsTest, MinusZeroEqualsZero) {
  const ops::RouterConfig router = {.routing = ops::Routing::kSoftmaxOfChosen, .num_experts = 40, .top_k = 4};
  const at::Tensor scores = at::full({2, 40}, 0.0);
  scores[1][0] = -0.0;
  const ops::ExpertChoice choice = Choose(scores, {}, router);
  for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(choice.experts[1][k].item<int64_t>(), k);
}

// What a broken checkpoint gives: the experts exist, each once, and the weights are not finite.
TEST_P(ExpertsTest, NumbersThatAreNoneStillNameExperts) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const int64_t groups : {1, 4}) {
      const ops::RouterConfig router = {
          .num_experts = 32, .top_k = 8, .renormalize = true, .num_groups = groups, .top_groups = 1};
      const ops::ExpertChoice choice = Choose(at::full({3, 32}, value), {}, router);
      for (int64_t token = 0; token < 3; ++token) {
        std::set<int64_t> seen;
        for (int64_t k = 0; k < 8; ++k) seen.insert(choice.experts[token][k].item<int64_t>());
        EXPECT_EQ(seen.size(), 8u);
        EXPECT_GE(*seen.begin(), 0);
        EXPECT_LT(*seen.rbegin(), 32);
        EXPECT_TRUE(std::isnan(choice.weights[token][0].item<float>()));
      }
    }
  }
}

TEST_P(ExpertsTest, SumsAsTheReference) {
  for (const int64_t columns : {1, 37, 48, 300}) {
    for (const int64_t top_k : {1, 2, 8}) {
      for (const int64_t tokens : {1, 19}) {
        const at::Tensor parts = at::randn({tokens * top_k, columns}).to(GetParam().type);
        const at::Tensor weights = at::rand({tokens, top_k});
        for (const at::Tensor& w : {weights, at::Tensor()}) {
          ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::SumExperts(OnDevice(parts), OnDevice(w), top_k, execution_),
                                              reference::SumExperts(parts, w, top_k)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExpertsTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
