// The RG-LRU against its ATen reference.
#include "models/ops/rg_lru/rg_lru.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kBlocks = 3;
constexpr int64_t kBlockWidth = 70;  // more than one chunk, no multiple of a vector
constexpr int64_t kWidth = kBlocks * kBlockWidth;

class RgLruTest : public KernelTest {
 protected:
  void SetUp() override {
    SetUpCache({{.states = {{.name = "recurrent", .shape = {kWidth}}}}});
    weights_ = {.input_bias = at::randn({kWidth}),
                .recurrence_bias = at::randn({kWidth}),
                // From decays of next to nothing, where 1 - a^2 cancels, to whole ones.
                .rate = -at::rand({kWidth}).pow(8) * 8 - 1e-5};
  }

  ops::RgLruWeights weights_;
};

TEST_P(RgLruTest, CarriesItsState) {
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    const at::Tensor x = Random(fast_->num_tokens(), kWidth);
    const at::Tensor gates = Random(fast_->num_tokens(), 2 * kWidth).unflatten(1, {kBlocks, 2 * kBlockWidth});
    ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::RgLru(OnDevice(x), OnDevice(gates), OnDevice(weights_), 0, 0, *fast_),
                                        reference::RgLru(x, gates, weights_, 0, 0, *reference_)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RgLruTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
