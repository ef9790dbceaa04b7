// The causal convolution against its ATen reference, and that chunks change no bit of it.
#include "models/ops/causal_conv/causal_conv.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kChannels = 301;  // more than one conv chunk, no multiple of a vector
constexpr int64_t kConvKernel = 4;

class CausalConvTest : public KernelTest {
 protected:
  void SetUp() override {
    const StateSpec conv = {.name = "conv", .shape = {kConvKernel - 1, kChannels}, .dtype = dtype()};
    SetUpCache({{.states = {conv, conv}}});
  }
};

TEST_P(CausalConvTest, CarriesItsState) {
  const at::Tensor weight = at::randn({kConvKernel, kChannels});
  const at::Tensor bias = at::randn({kChannels});
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    const at::Tensor x = Random(fast_->num_tokens(), kChannels);
    // Each activation carries a state of its own.
    for (int state : {0, 1}) {
      const auto activation = state == 0 ? ops::ConvActivation::kSilu : ops::ConvActivation::kNone;
      ASSERT_NO_FATAL_FAILURE(
          ExpectClose(ops::CausalConv(OnDevice(x), OnDevice(weight), OnDevice(bias), 0, state, *fast_, activation),
                      reference::CausalConv(x, weight, bias, 0, state, *reference_, activation)));
    }
  }
}

// What one token computes must not depend on its chunk: equal bits, whatever the steps' lengths.
TEST_P(CausalConvTest, ChunksDoNotChangeTheBits) {
  const int64_t total = 50;
  const at::Tensor x = Random(total, kChannels);
  const at::Tensor weight = at::randn({kConvKernel, kChannels});
  const auto run = [&](const std::vector<int64_t>& chunks) {
    return InSteps(chunks, [&](const auto& slice) {
      return ops::CausalConv(OnDevice(slice(x)), OnDevice(weight), {}, 0, 0, *fast_);
    });
  };
  const at::Tensor whole = run({total});
  for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{1, 7, 19, 23}, {49, 1}, {16, 16, 16, 2}}) {
    EXPECT_TRUE(at::equal(whole, run(chunks)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CausalConvTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
