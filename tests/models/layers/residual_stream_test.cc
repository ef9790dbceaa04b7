// A token's sum and norm do not depend on which tokens are computed with it.
#include "models/layers/residual_stream.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <vector>

#include "models/layers/norm.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

class ResidualStreamTest : public KernelTest {
 protected:
  void SetUp() override {
    SetUpCache({{.kv = KvSpec{.kv_heads = 1, .key_dim = 16, .value_dim = 16, .dtype = dtype()}}});
  }
};

TEST_P(ResidualStreamTest, SelectedTokensHaveTheBitsOfAll) {
  constexpr int64_t kDim = 1000;
  const at::Tensor chosen = OnDevice(at::tensor(std::vector<int64_t>{1, 4, 5}));
  const Norm norm = {.weight = OnDevice(at::randn({kDim})), .eps = 1e-5};
  for (const double scale : {1.0, 0.22}) {
    const at::Tensor x = OnDevice(Random(7, kDim));
    const at::Tensor addend = OnDevice(Random(7, kDim));
    ResidualStream all(x, GetParam().type), some(x, GetParam().type);
    all.Add(addend, execution_, scale);
    some.Add(addend, execution_, scale);
    some.Select(chosen);
    EXPECT_TRUE(at::equal(some.Normed(norm, execution_), at::index_select(all.Normed(norm, execution_), 0, chosen)));
    EXPECT_TRUE(at::equal(some.Sum(execution_), at::index_select(all.Sum(execution_), 0, chosen)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ResidualStreamTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
