// Every operation against its ATen reference: every instruction set that the machine has, both types, ragged rows in
// several chunks over a poisoned arena, odd sizes.
#include "models/kernels/ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kQHeads = 6;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 20;
constexpr int kAttentionLayers[] = {0, 1, 2, 3, 4};  // static, sliding, chunked, two with sinks

class OpsTest : public KernelTest {
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

TEST_P(OpsTest, RmsNorm) {
  for (int64_t dim : {1, 20, 133, 5000}) {
    const at::Tensor x = Random(11, 3 * dim);
    const at::Tensor weight = at::randn({dim});
    ExpectClose(ops::RmsNorm(x, weight, 1e-5), reference::RmsNorm(x, weight, 1e-5));
    at::Tensor in_place = x.clone();
    ops::RmsNormInPlace(in_place, weight, 1e-5);
    ExpectClose(in_place, reference::RmsNorm(x, weight, 1e-5));
  }
}

// A stream in float32 is rounded to the model's type before a norm, and stays what it is when something is added.
TEST_P(OpsTest, TheStreamMayBeWider) {
  for (int64_t dim : {1, 20, 133, 5000}) {
    const at::Tensor weight = at::randn({dim});
    const at::Tensor x = Random(11, dim);
    for (at::ScalarType type : {at::kFloat, GetParam().type}) {
      const at::Tensor stream = at::randn({11, dim + 3}).to(type).narrow(1, 0, dim);
      ExpectClose(ops::RmsNorm(stream, weight, 1e-5, GetParam().type),
                  reference::RmsNorm(stream.to(GetParam().type), weight, 1e-5));
      for (double scale : {1.0, 0.5}) {
        const at::Tensor sum = ops::AddToStream(stream, x, scale);
        ASSERT_EQ(sum.scalar_type(), type);
        const at::Tensor exact = stream.to(at::kDouble) + x.to(at::kDouble) * scale;
        ASSERT_TRUE(at::allclose(sum.to(at::kDouble), exact, type == at::kFloat ? 1e-6 : 1.0 / 256, 1e-6));
      }
    }
  }
}

TEST_P(OpsTest, RefusesRowsWithAStride) {
  at::Tensor columns = Random(12, 10).t();
  const at::Tensor angles = at::rand({10, 6});
  EXPECT_THROW(ops::RmsNorm(columns, at::ones({12}), 1e-5), c10::Error);
  EXPECT_THROW(ops::GatedRmsNorm(Random(10, 12), columns, at::ones({12}), 1e-5, 1, false), c10::Error);
  EXPECT_THROW(ops::Rotary(columns, angles, angles, at::zeros({10}, at::kLong), 12), c10::Error);
}

TEST_P(OpsTest, GatedRmsNorm) {
  for (int64_t dim : {22, 4100}) {
    const at::Tensor x = Random(9, 3 * dim);
    const at::Tensor gate = Random(9, 3 * dim);
    const at::Tensor weight = at::randn({3 * dim});
    for (bool gate_first : {false, true}) {
      ExpectClose(ops::GatedRmsNorm(x, gate, weight, 1e-5, 3, gate_first),
                  reference::GatedRmsNorm(x, gate, weight, 1e-5, 3, gate_first));
    }
  }
}

TEST_P(OpsTest, ActivateDependsOnTheElementAlone) {
  const at::Tensor x = Random(7, 45);
  for (ops::Activation activation :
       {ops::Activation::kSilu, ops::Activation::kGeluTanh, ops::Activation::kGelu, ops::Activation::kSigmoid,
        ops::Activation::kRelu, ops::Activation::kReluSquared}) {
    const at::Tensor all = ops::Activate(x, activation);
    ExpectClose(all, reference::Activate(x.to(at::kFloat), activation).to(x.scalar_type()));
    for (int64_t row = 0; row < x.size(0); ++row) {
      EXPECT_TRUE(at::equal(ops::Activate(x.narrow(0, row, 1), activation), all.narrow(0, row, 1)));
    }
  }
}

TEST_P(OpsTest, GatedActivation) {
  const at::Tensor x = Random(9, 2 * 77) * 6;
  for (ops::Activation activation :
       {ops::Activation::kSilu, ops::Activation::kGeluTanh, ops::Activation::kGelu, ops::Activation::kRelu,
        ops::Activation::kReluSquared, ops::Activation::kClampedSwiglu}) {
    ExpectClose(ops::GatedActivation(x, activation), reference::GatedActivation(x, activation));
  }
}

TEST_P(OpsTest, Rotary) {
  const at::Tensor angles = at::rand({200, 6}) * 7;  // a rotary dimension of 12 of the head's 20
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    at::Tensor fast = Random(fast_->num_tokens(), kQHeads * kHeadDim);
    at::Tensor expected = fast.clone();
    ops::Rotary(fast, angles.cos(), angles.sin(), fast_->device_positions(), kHeadDim);
    reference::Rotary(expected, angles.cos(), angles.sin(), fast_->device_positions(), kHeadDim);
    ASSERT_NO_FATAL_FAILURE(ExpectClose(fast, expected));
  }
}

TEST_P(OpsTest, AttentionOverTheBlocks) {
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    for (int layer : kAttentionLayers) {
      const at::Tensor q = Random(fast_->num_tokens(), kQHeads * kHeadDim);
      const at::Tensor k = Random(fast_->num_tokens(), kKvHeads * kHeadDim);
      const at::Tensor v = Random(fast_->num_tokens(), kKvHeads * kHeadDim);
      ops::WriteKv(k, v, layer, *fast_);
      reference::WriteKv(k, v, layer, *reference_);
      for (const ops::AttentionShape& shape : Shapes(layer)) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectClose(ops::Attention(q, shape, *fast_), reference::Attention(q, shape, *reference_)));
      }
    }
  }
}

// What one token computes must not depend on its chunk: equal bits, whatever the steps' lengths.
TEST_P(OpsTest, ChunksDoNotChangeTheBits) {
  const int64_t total = 50;
  const at::Tensor q = Random(total, kQHeads * kHeadDim);
  const at::Tensor k = Random(total, kKvHeads * kHeadDim);
  const at::Tensor v = Random(total, kKvHeads * kHeadDim);
  const at::Tensor bias = at::randn({kQHeads, 2 * 11 + 1});
  const auto run = [&](const std::vector<int64_t>& chunks) {
    leases_[0].Reset();
    std::vector<at::Tensor> outputs;
    int64_t done = 0;
    for (int64_t count : chunks) {
      NextStep({count});
      const auto slice = [&](const at::Tensor& t) { return t.narrow(0, done, count); };
      std::vector<at::Tensor> columns;
      for (int layer : kAttentionLayers) {
        ops::WriteKv(slice(k), slice(v), layer, *fast_);
        const ops::AttentionShape shape = {
            .layer = layer, .q_heads = kQHeads, .head_dim = kHeadDim, .scale = 0.3, .distance_bias = bias};
        columns.push_back(ops::Attention(slice(q), shape, *fast_));
      }
      outputs.push_back(at::cat(columns, 1));
      done += count;
    }
    return at::cat(outputs, 0);
  };
  const at::Tensor whole = run({total});
  for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{1, 7, 19, 23}, {49, 1}, {16, 16, 16, 2}}) {
    EXPECT_TRUE(at::equal(whole, run(chunks)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpsTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
