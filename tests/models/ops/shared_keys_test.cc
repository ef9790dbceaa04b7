// Attention over several segments of keys: against its ATen reference, and with equal bits whether an item has all keys
// of a tile or threads share them.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <vector>

#include "models/ops/paged_attention/paged_attention.h"
#include "models/ops/paged_attention/paged_attention_args.h"
#include "models/step/thread_pool.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kQHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 24;
constexpr int64_t kTotal = 2 * ops::kAttentionSegment + 700;
constexpr int64_t kLast = 10;  // tokens at the end, in steps that are so short that threads share keys

class SharedKeysTest : public KernelTest {
 protected:
  void SetUp() override {
    const KvSpec kv = {.kv_heads = kKvHeads, .key_dim = kHeadDim, .value_dim = kHeadDim, .dtype = dtype()};
    // All, a window with sinks whose first segment is partly read, a chunk, and the quantised ones.
    std::vector<LayerCacheSpec> layers = {{.kv = kv}, {.kv = kv}, {.kv = kv}};
    layers[1].kv->window = 1500;
    layers[1].kv->sink_tokens = 3;
    layers[2].kv->chunk = 1600;
    std::vector<LayerCacheSpec> int8 = {{.kv = kv}}, int4 = {{.kv = kv}};
    QuantiseKv(DType::kInt8, 0, &int8);
    QuantiseKv(DType::kInt4, /*residual_tokens=*/100, &int4);
    layers.insert(layers.end(), {int8[0], int4[0]});
    num_layers_ = static_cast<int>(layers.size());
    SetUpCache(layers);
    q_ = Random(kTotal, kQHeads * kHeadDim);
    k_ = Random(kTotal, kKvHeads * kHeadDim);
    v_ = Random(kTotal, kKvHeads * kHeadDim);
    sinks_ = at::randn({kQHeads}) * 3;
  }

  // What attention gives in the step of these tokens, in all layers.
  at::Tensor Attend(const at::Tensor& q, ThreadPool* threads) {
    execution_.threads = threads;
    std::vector<at::Tensor> columns;
    for (int layer = 0; layer < num_layers_; ++layer) columns.push_back(ops::Attention(q, Shape(layer), *fast_));
    return at::cat(columns, 1);
  }

  template <typename Slice>
  void Write(const Slice& slice) {
    for (int layer = 0; layer < num_layers_; ++layer) ops::WriteKv(slice(k_), slice(v_), layer, *fast_);
  }

  ops::AttentionShape Shape(int layer) const {
    ops::AttentionShape shape = {.layer = layer, .q_heads = kQHeads, .head_dim = kHeadDim, .scale = 0.3};
    if (layer > 0) shape.sinks = sinks_;
    return shape;
  }

  int num_layers_ = 0;
  at::Tensor q_, k_, v_, sinks_;
};

TEST_P(SharedKeysTest, IsTheReference) {
  ThreadPool threads(3);
  execution_.threads = &threads;
  for (const int64_t count : {kTotal - kLast, int64_t{1}, kLast - 1}) {
    ASSERT_NO_FATAL_FAILURE(NextStep({count}));
    const int64_t done = leases_[0].num_tokens() - count;
    const auto slice = [&](const at::Tensor& x) { return x.narrow(0, done, count); };
    for (int layer = 0; layer < num_layers_; ++layer) {
      ops::WriteKv(slice(k_), slice(v_), layer, *fast_);
      reference::WriteKv(slice(k_), slice(v_), layer, *reference_);
      if (count > kLast) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::Attention(slice(q_), Shape(layer), *fast_),
                                          reference::Attention(slice(q_), Shape(layer), *reference_), 1e-5))
          << "layer " << layer << ", " << count << " tokens";
    }
  }
}

TEST_P(SharedKeysTest, SharingChangesNoBit) {
  const at::Tensor whole = InSteps({kTotal}, [&](const auto& slice) {
    Write(slice);
    return Attend(slice(q_), nullptr);
  });
  int64_t done = 0;
  InSteps({kTotal - kLast, 1, kLast - 1}, [&](const auto& slice) {
    Write(slice);
    const at::Tensor q = slice(q_);
    for (const int count : {1, 2, 3, 7}) {
      if (q.size(0) > kLast) break;
      ThreadPool threads(count);
      EXPECT_TRUE(at::equal(whole.narrow(0, done, q.size(0)), Attend(q, &threads))) << count << " threads";
    }
    done += q.size(0);
    return q;
  });
  EXPECT_EQ(done, kTotal);
}

INSTANTIATE_TEST_SUITE_P(All, SharedKeysTest, ::testing::ValuesIn(KernelParams()), KernelParamName);

}  // namespace
}  // namespace berth
