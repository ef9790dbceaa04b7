// The recurrences against their ATen references, under the fixture's ragged rows and at lengths of several chunks.
#include "models/ops/mamba/mamba.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kChannels = 3 * 70;  // groups of more than one tile, no multiple of a vector
constexpr int64_t kStateDim = 7;
constexpr int64_t kGroups = 3;

// Layers 1 and on: heads and states narrower and wider than a vector, one and several groups.
const std::vector<ops::Mamba2Shape> kShapes = {
    {.layer = 1, .heads = 6, .head_dim = 5, .state_dim = 7, .groups = 2, .dt_min = 0.01, .dt_max = 1.5},
    {.layer = 2, .heads = 4, .head_dim = 64, .state_dim = 16, .groups = 1},
    {.layer = 3, .heads = 4, .head_dim = 83, .state_dim = 13, .groups = 2},
    {.layer = 4, .heads = 4, .head_dim = 40, .state_dim = 72, .groups = 1},
};

class MambaTest : public KernelTest {
 protected:
  void SetUp() override {
    std::vector<LayerCacheSpec> specs = {{.states = {{.name = "mamba", .shape = {kStateDim, kChannels}}}}};
    for (const ops::Mamba2Shape& shape : kShapes) {
      specs.push_back({.states = {{.name = "mamba2", .shape = {shape.heads, shape.state_dim, shape.head_dim}}}});
    }
    SetUpCache(specs);
  }

  ops::MambaInputs MambaInputs(int64_t tokens, int64_t groups) {
    const auto per_group = [&] {
      return Random(tokens, groups * (kStateDim + 5)).unflatten(1, {groups, kStateDim + 5}).narrow(2, 0, kStateDim);
    };
    return {.x = Random(tokens, kChannels),
            .gate = Random(tokens, kChannels),
            .dt = Random(tokens, kChannels),
            .b = per_group(),
            .c = per_group()};
  }
};

struct Mamba2Inputs {
  explicit Mamba2Inputs(const ops::Mamba2Shape& shape)
      : a(-at::rand({shape.heads}) * 3), d(at::randn({shape.heads})), dt_bias(at::randn({shape.heads})) {}
  at::Tensor a, d, dt_bias;
};

int64_t Columns(const ops::Mamba2Shape& shape) {
  return shape.heads * shape.head_dim + 2 * shape.groups * shape.state_dim;
}

TEST_P(MambaTest, MambaScanCarriesItsState) {
  const at::Tensor a = -at::rand({kStateDim, kChannels}) * 3;
  const at::Tensor d = at::randn({kChannels});
  const at::Tensor dt_bias = at::randn({kChannels}) * 3;
  for (int64_t groups : {int64_t{1}, kGroups}) {
    for (SequenceLease& lease : leases_) lease.Reset();
    for (const auto& counts : Steps()) {
      ASSERT_NO_FATAL_FAILURE(NextStep(counts));
      const ops::MambaInputs inputs = MambaInputs(fast_->num_tokens(), groups);
      ASSERT_NO_FATAL_FAILURE(
          ExpectClose(ops::MambaScan(OnDevice(inputs), OnDevice(a), OnDevice(d), OnDevice(dt_bias), 0, 0, *fast_),
                      reference::MambaScan(inputs, a, d, dt_bias, 0, 0, *reference_)));
    }
  }
}

// What one token computes must not depend on its chunk: equal bits, whatever the steps' lengths.
TEST_P(MambaTest, ChunksDoNotChangeTheBitsOfMambaScan) {
  const int64_t total = 50;
  const ops::MambaInputs all = MambaInputs(total, kGroups);
  const at::Tensor a = -at::rand({kStateDim, kChannels}) * 3;
  const at::Tensor d = at::randn({kChannels});
  const auto run = [&](const std::vector<int64_t>& chunks) {
    return InSteps(chunks, [&](const auto& slice) {
      return ops::MambaScan(
          OnDevice(ops::MambaInputs{slice(all.x), slice(all.gate), slice(all.dt), slice(all.b), slice(all.c)}),
          OnDevice(a), OnDevice(d), OnDevice(d), 0, 0, *fast_);
    });
  };
  const at::Tensor whole = run({total});
  EXPECT_TRUE(at::equal(whole, run({1, 7, 19, 23})));
  EXPECT_TRUE(at::equal(whole, run({49, 1})));
}

TEST_P(MambaTest, Mamba2ScanCarriesItsState) {
  std::vector<std::vector<int64_t>> steps = Steps();
  steps.push_back({ops::kMamba2Chunk, ops::kMamba2Chunk + 21, 1, ops::kMamba2Chunked - 1, ops::kMamba2Chunk + 1});
  steps.push_back({1, 3, ops::kMamba2Chunked, ops::kMamba2Chunk - 1, 1});
  for (const ops::Mamba2Shape& shape : kShapes) {
    for (SequenceLease& lease : leases_) lease.Reset();
    const Mamba2Inputs in(shape);
    for (const auto& counts : steps) {
      ASSERT_NO_FATAL_FAILURE(NextStep(counts));
      const at::Tensor xbc = Random(fast_->num_tokens(), Columns(shape));
      const at::Tensor dt = Random(fast_->num_tokens(), shape.heads);
      ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::Mamba2Scan(OnDevice(xbc), OnDevice(dt), OnDevice(in.a), OnDevice(in.d),
                                                          OnDevice(in.dt_bias), shape, *fast_),
                                          reference::Mamba2Scan(xbc, dt, in.a, in.d, in.dt_bias, shape, *reference_)));
    }
  }
}

TEST_P(MambaTest, InOrderChunksDoNotChangeTheBitsOfMamba2Scan) {
  const int64_t total = 150;
  for (const ops::Mamba2Shape& shape : kShapes) {
    const Mamba2Inputs in(shape);
    const at::Tensor xbc = Random(total, Columns(shape));
    const at::Tensor dt = Random(total, shape.heads);
    const auto run = [&](const std::vector<int64_t>& chunks) {
      return InSteps(chunks, [&](const auto& slice) {
        return ops::Mamba2Scan(OnDevice(slice(xbc)), OnDevice(slice(dt)), OnDevice(in.a), OnDevice(in.d),
                               OnDevice(in.dt_bias), shape, *fast_);
      });
    };
    const at::Tensor chunked = run({total});
    execution_.chunk_invariant_scans = true;
    const at::Tensor whole = run({total});
    ASSERT_NO_FATAL_FAILURE(ExpectClose(whole, chunked));
    EXPECT_TRUE(at::equal(run({1, 7, 64, 28, 50}), whole));
    EXPECT_TRUE(at::equal(run({149, 1}), whole));
    execution_.chunk_invariant_scans = false;
  }
}

// A sum of large decays must not blur a small difference of two of them.
TEST_P(MambaTest, Mamba2ScanForgetsAtOnceAndNotAtAll) {
  const ops::Mamba2Shape& shape = kShapes[1];
  const Mamba2Inputs in(shape);
  ASSERT_NO_FATAL_FAILURE(NextStep({100}));
  const at::Tensor xbc = Random(100, Columns(shape));
  at::Tensor dt = Random(100, shape.heads).clone();
  dt.narrow(0, 0, 10).fill_(5000);  // decays of exp(-5000 a)
  dt.narrow(0, 10, 90).fill_(-4);
  // A recurrence rounds the state at each of the tokens; the reference is 1.3e-6 off itself, measured in float64.
  const double roundings = GetParam().on_cuda() ? 4e-6 : 2e-6;
  ExpectClose(
      ops::Mamba2Scan(OnDevice(xbc), OnDevice(dt), OnDevice(in.a), OnDevice(in.d), OnDevice(in.dt_bias), shape, *fast_)
          .narrow(0, 10, 90),
      reference::Mamba2Scan(xbc, dt, in.a, in.d, in.dt_bias, shape, *reference_).narrow(0, 10, 90), roundings);
}

INSTANTIATE_TEST_SUITE_P(All, MambaTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
