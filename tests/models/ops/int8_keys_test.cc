// Keys in int8 by the lengths of heads and the number of heads that share a key head. Where queries are bfloat16, most
// instruction sets multiply int8 keys with queries in int16, in place or packed: every way has the same bits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "models/ops/paged_attention/paged_attention.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kKvHeads = 2;
// Whole registers of each instruction set, parts of them, and parts of four bytes.
const std::vector<int64_t> kDims = {64, 16, 37, 64, 80, 128, 190};
// The most that attend in place are 12.
const std::vector<int64_t> kGroups = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13};
// A layer's values are whole panels, or more.
int64_t ValueDim(size_t layer) { return layer == 3 ? 40 : 32; }

class Int8KeysTest : public KernelTest {
 protected:
  void SetUpInt8(const std::vector<int64_t>& dims) {
    std::vector<LayerCacheSpec> layers;
    for (const int64_t dim : dims) {
      const int64_t value_dim = ValueDim(layers.size());
      layers.push_back({.kv = KvSpec{.kv_heads = kKvHeads, .key_dim = dim, .value_dim = value_dim, .dtype = dtype()}});
    }
    layers[0].kv->window = 45;  // begins within a register of keys
    QuantiseKv(DType::kInt8, 0, &layers);
    SetUpCache(layers, {0, 0, 0, 0, 0}, /*block_tokens=*/16);  // as many as a register has lanes, or more
  }

  // A query in int16 is off by up to 1 / 65,534 of its largest number. Keys in int8 were off by 1 / 254 of theirs.
  void ExpectReference(const at::Tensor& actual, const at::Tensor& q, const ops::AttentionShape& shape) {
    ExpectClose(actual, reference::Attention(q, shape, *reference_), GetParam().type == at::kFloat ? 2e-6 : 1e-4);
    EXPECT_FALSE(HasFatalFailure()) << "heads of " << shape.head_dim << ", " << shape.q_heads << " query heads";
  }

  static ops::AttentionShape Shape(size_t layer, int64_t group, int64_t dim) {
    return {.layer = static_cast<int>(layer),
            .q_heads = group * kKvHeads,
            .head_dim = dim,
            .scale = 1 / std::sqrt(static_cast<double>(dim))};
  }
};

TEST_P(Int8KeysTest, OneTokenHasTheBitsOfItsPromptAndIsTheReference) {
  SetUpInt8(kDims);
  const int64_t total = 75, last = 3;  // more than a span; decoded one by one
  std::vector<at::Tensor> keys, queries;
  for (const int64_t dim : kDims) {
    keys.push_back(Random(total, kKvHeads * dim));
    queries.push_back(Random(total, kGroups.back() * kKvHeads * dim));
  }
  const at::Tensor values = Random(total, kKvHeads * ValueDim(3));
  const auto step = [&](int64_t done, int64_t count, bool compare) {
    NextStep({count});
    std::vector<at::Tensor> outputs;
    for (size_t layer = 0; layer < kDims.size(); ++layer) {
      const at::Tensor k = keys[layer].narrow(0, done, count);
      const at::Tensor v = values.narrow(0, done, count).narrow(1, 0, kKvHeads * ValueDim(layer));
      ops::WriteKv(OnDevice(k), OnDevice(v), static_cast<int>(layer), *fast_);
      if (compare) reference::WriteKv(k, v, static_cast<int>(layer), *reference_);
      for (const int64_t group : kGroups) {
        const ops::AttentionShape shape = Shape(layer, group, kDims[layer]);
        const at::Tensor q = queries[layer].narrow(0, done, count).narrow(1, 0, shape.q_heads * kDims[layer]);
        outputs.push_back(ops::Attention(OnDevice(q), OnDevice(shape), *fast_).cpu());
        if (compare) ExpectReference(outputs.back(), q, shape);
      }
    }
    return at::cat(outputs, 1);
  };
  const at::Tensor prompt = step(0, total, /*compare=*/true);
  leases_[0].Reset();
  step(0, total - last, /*compare=*/false);
  for (int64_t i = total - last; i < total; ++i) {
    EXPECT_TRUE(at::equal(step(i, 1, /*compare=*/false), prompt.narrow(0, i, 1))) << "token " << i;
  }
}

// The largest sums that numbers of these sizes have, with keys on both sides of zero. With 32,767 steps, the sum of 517
// products would not fit 32 bits, and would change its sign.
TEST_P(Int8KeysTest, SumsOfTheLongestHeadsFit) {
  const std::vector<int64_t> dims = {512, 516, 517, 576, 1024};
  SetUpInt8(dims);
  for (size_t layer = 0; layer < dims.size(); ++layer) {
    const int64_t dim = dims[layer];
    for (SequenceLease& lease : leases_) lease.Reset();
    NextStep({2});
    const auto options = at::TensorOptions().dtype(GetParam().type);
    at::Tensor k = at::full({2, kKvHeads * dim}, 0.5, options);
    k.select(0, 1).neg_();
    const at::Tensor v = Random(2, kKvHeads * ValueDim(layer));
    ops::WriteKv(OnDevice(k), OnDevice(v), static_cast<int>(layer), *fast_);
    reference::WriteKv(k, v, static_cast<int>(layer), *reference_);
    for (const int64_t group : {1, 2, 7}) {
      const ops::AttentionShape shape = Shape(layer, group, dim);
      const at::Tensor q = at::full({2, shape.q_heads * dim}, 0.0625, options);  // scores of about 1 and -1
      ExpectReference(ops::Attention(OnDevice(q), OnDevice(shape), *fast_), q, shape);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Int8KeysTest, ::testing::ValuesIn(KernelParams()), KernelParamName);

}  // namespace
}  // namespace berth
