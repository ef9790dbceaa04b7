// Each call that a CUDA graph cannot have is found, and launches are counted.
#include "tests/models/recorded_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/nonzero.h>
#include <gtest/gtest.h>

#include <functional>

namespace berth {
namespace {

TEST(RecordedStepTest, FindsWhatWaitsForTheDevice) {
  const at::Tensor x = at::arange(12, at::kFloat).view({3, 4});
  const at::Tensor mask = x > 3;
  const std::vector<std::function<void()>> calls = {[&] { x[0][0].item<float>(); },
                                                    [&] { at::nonzero(x); },
                                                    [&] { at::masked_select(x, mask); },
                                                    [&] { at::index(x, {mask}); },
                                                    [&] { x.index_put_({x < 0}, x[0][0]); },
                                                    [&] { at::equal(x, x); },
                                                    [&] { x.cpu(); },
                                                    [&] { x.to(at::kCPU, at::kDouble); },
                                                    [&] { (void)(x[0][0] == 0).is_nonzero(); }};
  for (size_t i = 0; i < calls.size(); ++i) {
    const RecordedStep step;
    calls[i]();
    EXPECT_FALSE(step.refused().empty()) << i;
  }
}

TEST(RecordedStepTest, CountsLaunches) {
  const at::Tensor x = at::arange(12, at::kFloat).view({3, 4});
  const RecordedStep step;
  at::linear(x.t().contiguous(), x.t()).add_(1);
  x.view({4, 3}).narrow(0, 1, 2).to(at::kFloat);
  x.to(at::kBFloat16);
  EXPECT_EQ(ToString(step.launches()), "4: add_ 1, copy_ 2, kernels 0, linear 1");
  EXPECT_TRUE(step.refused().empty());
}

}  // namespace
}  // namespace berth
