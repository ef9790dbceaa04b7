// The gated delta net against its ATen reference, which goes token by token.
#include "models/ops/gated_delta_net/gated_delta_net.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

// Values narrower than a vector, no multiple of one, and of whole vectors; sizes of whole matrix tiles; own and shared
// keys; both ranges of beta.
const std::vector<ops::DeltaNetShape> kShapes = {
    {.layer = 0, .k_heads = 2, .v_heads = 6, .key_dim = 5, .value_dim = 7},
    {.layer = 1, .k_heads = 4, .v_heads = 4, .key_dim = 13, .value_dim = 83, .beta_scale = 2},
    {.layer = 2, .k_heads = 2, .v_heads = 4, .key_dim = 48, .value_dim = 80},
    {.layer = 3, .k_heads = 2, .v_heads = 4, .key_dim = 32, .value_dim = 96},
};

struct Parameters {
  explicit Parameters(const ops::DeltaNetShape& shape)
      : rate(-at::rand({shape.v_heads}) * 2), dt_bias(at::randn({shape.v_heads})) {}
  at::Tensor rate, dt_bias;
};

class GatedDeltaNetTest : public KernelTest {
 protected:
  void SetUp() override {
    std::vector<LayerCacheSpec> specs;
    for (const ops::DeltaNetShape& s : kShapes) {
      specs.push_back({.states = {{.name = "recurrent", .shape = {s.v_heads, s.key_dim, s.value_dim}}}});
    }
    SetUpCache(specs);
  }

  at::Tensor Qkv(const ops::DeltaNetShape& shape, int64_t tokens) {
    return Random(tokens, 2 * shape.k_heads * shape.key_dim + shape.v_heads * shape.value_dim);
  }
};

TEST_P(GatedDeltaNetTest, CarriesItsState) {
  std::vector<std::vector<int64_t>> steps = Steps();
  steps.push_back({ops::kDeltaChunk, 2 * ops::kDeltaChunk + 5, 1, ops::kDeltaChunked - 1, ops::kDeltaChunk + 1});
  steps.push_back({1, 3, ops::kDeltaChunked, ops::kDeltaChunk - 1, 1});
  for (const ops::DeltaNetShape& shape : kShapes) {
    for (SequenceLease& lease : leases_) lease.Reset();
    const Parameters p(shape);
    for (const auto& counts : steps) {
      ASSERT_NO_FATAL_FAILURE(NextStep(counts));
      const at::Tensor qkv = Qkv(shape, fast_->num_tokens());
      const at::Tensor a = Random(fast_->num_tokens(), shape.v_heads);
      const at::Tensor b = Random(fast_->num_tokens(), shape.v_heads);
      ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::GatedDeltaNet(OnDevice(qkv), OnDevice(a), OnDevice(b), OnDevice(p.rate),
                                                             OnDevice(p.dt_bias), shape, *fast_),
                                          reference::GatedDeltaNet(qkv, a, b, p.rate, p.dt_bias, shape, *reference_)));
    }
  }
}

// A sum of large decays must not blur a small difference of two of them.
TEST_P(GatedDeltaNetTest, ForgetsAtOnceAndNotAtAll) {
  const ops::DeltaNetShape& shape = kShapes[2];
  const Parameters p(shape);
  ASSERT_NO_FATAL_FAILURE(NextStep({100}));
  const at::Tensor qkv = Qkv(shape, 100);
  at::Tensor a = Random(100, shape.v_heads).clone();
  const at::Tensor b = Random(100, shape.v_heads);
  a.narrow(0, 0, 10).fill_(5000);  // decays of exp(-5000)
  a.narrow(0, 10, 90).fill_(-4);
  ExpectClose(
      ops::GatedDeltaNet(OnDevice(qkv), OnDevice(a), OnDevice(b), OnDevice(p.rate), OnDevice(p.dt_bias), shape, *fast_),
      reference::GatedDeltaNet(qkv, a, b, p.rate, p.dt_bias, shape, *reference_));
}

// Where a prompt is cut into steps changes the order of sums, so roundings, and nothing more.
TEST_P(GatedDeltaNetTest, ChunksChangeRoundingsOnlyAndInOrderNoBit) {
  const int64_t total = 100;
  for (const ops::DeltaNetShape& shape : kShapes) {
    const Parameters p(shape);
    const at::Tensor qkv = Qkv(shape, total);
    const at::Tensor a = Random(total, shape.v_heads);
    const at::Tensor b = Random(total, shape.v_heads);
    const auto run = [&](const std::vector<int64_t>& chunks) {
      return InSteps(chunks, [&](const auto& slice) {
        return ops::GatedDeltaNet(OnDevice(slice(qkv)), OnDevice(slice(a)), OnDevice(slice(b)), OnDevice(p.rate),
                                  OnDevice(p.dt_bias), shape, *fast_);
      });
    };
    const at::Tensor whole = run({total});
    ASSERT_NO_FATAL_FAILURE(ExpectClose(run({1, 7, 19, 23, 50}), whole));
    ASSERT_NO_FATAL_FAILURE(ExpectClose(run({99, 1}), whole));
    execution_.chunk_invariant_scans = true;
    const at::Tensor in_order = run({total});
    ASSERT_NO_FATAL_FAILURE(ExpectClose(in_order, whole));
    EXPECT_TRUE(at::equal(run({1, 7, 19, 23, 50}), in_order));
    EXPECT_TRUE(at::equal(run({16, 17, 66, 1}), in_order));
    execution_.chunk_invariant_scans = false;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GatedDeltaNetTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
