// Every operation against its ATen reference: every instruction set that the machine has, both types, ragged rows in
// several chunks over a poisoned arena, odd sizes.
#include "models/ops/paged_attention/paged_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kQHeads = 6;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 20;
constexpr int kAttentionLayers[] = {0, 1, 2, 3, 4};  // static, sliding, chunked, two with sinks

class PagedAttentionTest : public KernelTest {
 protected:
  void SetUp() override {
    const KvSpec kv = {.kv_heads = kKvHeads, .key_dim = kHeadDim, .value_dim = kHeadDim, .dtype = dtype()};
    KvSpec sliding = kv;
    sliding.window = 13;
    KvSpec chunked = kv;
    chunked.chunk = 11;
    KvSpec few = sliding;  // sinks within a block of 8, and over several
    few.sink_tokens = 3;
    KvSpec many = sliding;
    many.sink_tokens = 18;
    SetUpCache({{.kv = kv}, {.kv = sliding}, {.kv = chunked}, {.kv = few}, {.kv = many}});
  }
};

// Every feature of the scores in turn.
std::vector<ops::AttentionShape> Shapes(int layer) {
  const ops::AttentionShape plain = {.layer = layer, .q_heads = kQHeads, .head_dim = kHeadDim, .scale = 0.3};
  std::vector<ops::AttentionShape> shapes(3, plain);
  shapes[0].sinks = at::randn({kQHeads}) * 3;
  shapes[1].softcap = 1.5;
  shapes[2].distance_bias = at::randn({kQHeads, 2 * 11 + 1});
  return shapes;
}

TEST_P(PagedAttentionTest, IsTheReference) {
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    for (int layer : kAttentionLayers) {
      const at::Tensor q = Random(fast_->num_tokens(), kQHeads * kHeadDim);
      const at::Tensor k = Random(fast_->num_tokens(), kKvHeads * kHeadDim);
      const at::Tensor v = Random(fast_->num_tokens(), kKvHeads * kHeadDim);
      ops::WriteKv(OnDevice(k), OnDevice(v), layer, *fast_);
      reference::WriteKv(k, v, layer, *reference_);
      for (const ops::AttentionShape& shape : Shapes(layer)) {
        ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::Attention(OnDevice(q), OnDevice(shape), *fast_),
                                            reference::Attention(q, shape, *reference_)));
      }
    }
  }
}

// What one token computes must not depend on its chunk: equal bits, whatever the steps' lengths.
TEST_P(PagedAttentionTest, ChunksDoNotChangeTheBits) {
  const int64_t total = 50;
  const at::Tensor q = Random(total, kQHeads * kHeadDim);
  const at::Tensor k = Random(total, kKvHeads * kHeadDim);
  const at::Tensor v = Random(total, kKvHeads * kHeadDim);
  const at::Tensor bias = at::randn({kQHeads, 2 * 11 + 1});
  const auto run = [&](const std::vector<int64_t>& chunks) {
    return InSteps(chunks, [&](const auto& slice) {
      std::vector<at::Tensor> columns;
      for (int layer : kAttentionLayers) {
        ops::WriteKv(OnDevice(slice(k)), OnDevice(slice(v)), layer, *fast_);
        const ops::AttentionShape shape = {
            .layer = layer, .q_heads = kQHeads, .head_dim = kHeadDim, .scale = 0.3, .distance_bias = bias};
        columns.push_back(ops::Attention(OnDevice(slice(q)), OnDevice(shape), *fast_));
      }
      return at::cat(columns, 1);
    });
  };
  const at::Tensor whole = run({total});
  for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{1, 7, 19, 23}, {49, 1}, {16, 16, 16, 2}}) {
    EXPECT_TRUE(at::equal(whole, run(chunks)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, PagedAttentionTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

// Heads of the sizes that most models have, over as many keys as CUDA divides. A build with FlashInfer's attention
// (docs/cuda.md) runs it here.
using WideHeadsTest = KernelTest;

TEST_P(WideHeadsTest, IsTheReference) {
  const KvSpec narrow = {.kv_heads = kKvHeads, .key_dim = 64, .value_dim = 64, .dtype = dtype()};
  KvSpec wide = {.kv_heads = kKvHeads, .key_dim = 128, .value_dim = 128, .dtype = dtype()};
  wide.window = 270;
  SetUpCache({{.kv = narrow}, {.kv = wide}});
  const at::Tensor sinks = at::randn({kQHeads}) * 3;
  // Short contexts first, with a token or more in each row, and then long ones.
  for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{{9, 2, 1, 0, 0},
                                                                              {1, 1, 1, 0, 0},
                                                                              {290, 7, 0, 0, 300},
                                                                              {1, 1, 33, 0, 1},
                                                                              {1, 1, 1, 0, 1},
                                                                              {2, 17, 1, 5, 1},
                                                                              {1, 1, 1, 1, 1}}) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    for (const int layer : {0, 1}) {
      const int64_t dim = layer == 0 ? 64 : 128;
      const at::Tensor q = Random(fast_->num_tokens(), kQHeads * dim);
      const at::Tensor k = Random(fast_->num_tokens(), kKvHeads * dim);
      const at::Tensor v = Random(fast_->num_tokens(), kKvHeads * dim);
      ops::WriteKv(OnDevice(k), OnDevice(v), layer, *fast_);
      reference::WriteKv(k, v, layer, *reference_);
      if (counts[0] == 290 && GetParam().emulated != nullptr) continue;  // it takes long
      std::vector<ops::AttentionShape> shapes(
          3, {.layer = layer, .q_heads = kQHeads, .head_dim = dim, .scale = 1 / std::sqrt(static_cast<double>(dim))});
      shapes[1].sinks = sinks;
      shapes[2].softcap = 1.5;
      for (const ops::AttentionShape& shape : shapes) {
        ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::Attention(OnDevice(q), OnDevice(shape), *fast_),
                                            reference::Attention(q, shape, *reference_)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WideHeadsTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
