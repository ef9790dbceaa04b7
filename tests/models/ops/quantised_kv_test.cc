// Quantised keys and values: every instruction set against the ATen reference, byte for byte in the cache. Rows are
// ragged and come in several chunks, over a poisoned arena. Also tests what a token's bytes depend on.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "models/ops/paged_attention/paged_attention.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kQHeads = 6;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 37;  // odd, and no multiple of a vector

class QuantisedKvTest : public KernelTest {
 protected:
  void SetUp() override {
    // Static, sliding (int4 with sinks) and chunked layers of each way to store them.
    std::vector<LayerCacheSpec> layers;
    struct Way {
      DType dtype;
      int64_t residual_tokens;
    };
    for (const Way& way : {Way{DType::kInt8, 0}, Way{DType::kInt4, 0}, Way{DType::kInt4, 10}}) {
      KvSpec kv = {.kv_heads = kKvHeads, .key_dim = kHeadDim, .value_dim = kHeadDim, .dtype = dtype()};
      std::vector<LayerCacheSpec> some = {{.kv = kv}, {.kv = kv}, {.kv = kv}};
      some[1].kv->window = 29;
      some[1].kv->sink_tokens = way.dtype == DType::kInt4 ? 5 : 0;
      some[2].kv->chunk = 27;
      QuantiseKv(way.dtype, way.residual_tokens, &some);
      layers.insert(layers.end(), some.begin(), some.end());
    }
    num_layers_ = static_cast<int>(layers.size());
    SetUpCache(layers);
  }

  // Returns the static layers.
  std::vector<int> StaticLayers() const {
    std::vector<int> layers;
    for (int layer = 0; layer < num_layers_; layer += 3) layers.push_back(layer);
    return layers;
  }

  // The bytes of the sequence's blocks of a layer's keys and values, as `storage` has them.
  std::string Stored(const SequenceLease& lease, int layer, const ArenaStorage& storage) const {
    std::string bytes;
    const int group = fast_->slot(layer).kv_group;
    for (int64_t offset : lease.blocks(group).offsets) {
      const size_t before = bytes.size();
      bytes.resize(before + static_cast<size_t>(fast_->group(group).unit_bytes));
      storage.Read(offset, fast_->group(group).unit_bytes, reinterpret_cast<std::byte*>(bytes.data() + before));
    }
    return bytes;
  }

  at::Tensor RandomKv(int64_t tokens) {
    // Heads and dimensions of very different sizes, as trained ones are.
    at::Tensor x = Random(tokens, kKvHeads * kHeadDim);
    x.select(1, 3).mul_(30);
    x.narrow(1, kHeadDim, kHeadDim).mul_(0.01);
    return x;
  }

  // The scale keeps scores of the large dimension at a few units: float32 must not lose what is compared.
  static ops::AttentionShape Shape(int layer) {
    return {.layer = layer, .q_heads = kQHeads, .head_dim = kHeadDim, .scale = 0.02};
  }

  int num_layers_ = 0;
};

TEST_P(QuantisedKvTest, KernelsAreTheReference) {
  int turn = 0;
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    ++turn;
    for (int layer = 0; layer < num_layers_; ++layer) {
      const at::Tensor q = Random(fast_->num_tokens(), kQHeads * kHeadDim);
      const at::Tensor k = RandomKv(fast_->num_tokens());
      const at::Tensor v = RandomKv(fast_->num_tokens());
      ops::WriteKv(OnDevice(k), OnDevice(v), layer, *fast_);
      reference::WriteKv(k, v, layer, *reference_);
      // Each layer meets each feature of the scores in some step.
      ops::AttentionShape shape = Shape(layer);
      if ((layer + turn) % 3 == 0) shape.sinks = at::randn({kQHeads}) * 3;
      if ((layer + turn) % 3 == 1) shape.softcap = 1.5;
      if ((layer + turn) % 3 == 2) shape.distance_bias = at::randn({kQHeads, 2 * 11 + 1});
      ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::Attention(OnDevice(q), OnDevice(shape), *fast_),
                                          reference::Attention(q, shape, *reference_)))
          << "layer " << layer;
    }
    for (int layer : StaticLayers()) {
      for (const SequenceLease& lease : leases_) {
        ASSERT_EQ(Stored(lease, layer, *fast_storage_), Stored(lease, layer, *reference_storage_)) << layer;
      }
    }
  }
}

TEST_P(QuantisedKvTest, NeitherChunksNorNeighboursChangeATokensBytesOrBits) {
  const int64_t total = 61;
  const at::Tensor q = Random(total, kQHeads * kHeadDim);
  const at::Tensor k = RandomKv(total);
  const at::Tensor v = RandomKv(total);
  struct Result {
    at::Tensor out;
    std::string stored;
  };
  const auto run = [&](const std::vector<int64_t>& chunks, bool neighbour) {
    for (SequenceLease& lease : leases_) lease.Reset();
    std::vector<at::Tensor> outputs;
    int64_t done = 0;
    for (int64_t count : chunks) {
      NextStep(neighbour ? std::vector<int64_t>{5, count} : std::vector<int64_t>{0, count});
      const auto packed = [&](const at::Tensor& x) {
        const at::Tensor own = x.narrow(0, done, count);
        return neighbour ? at::cat({x.narrow(0, 0, 5) * 7, own}, 0) : own;
      };
      std::vector<at::Tensor> columns;
      for (int layer = 0; layer < num_layers_; ++layer) {
        ops::WriteKv(OnDevice(packed(k)), OnDevice(packed(v)), layer, *fast_);
        columns.push_back(
            ops::Attention(OnDevice(packed(q)), OnDevice(Shape(layer)), *fast_).narrow(0, neighbour ? 5 : 0, count));
      }
      outputs.push_back(at::cat(columns, 1));
      done += count;
    }
    Result result = {.out = at::cat(outputs, 0), .stored = {}};
    for (int layer : StaticLayers()) result.stored += Stored(leases_[1], layer, *fast_storage_);
    return result;
  };
  const Result whole = run({total}, false);
  for (bool neighbour : {false, true}) {
    for (const auto& chunks : {std::vector<int64_t>{1, 7, 19, 34}, {60, 1}, {16, 16, 16, 13}}) {
      const Result other = run(chunks, neighbour);
      EXPECT_TRUE(at::equal(whole.out, other.out));
      EXPECT_EQ(whole.stored, other.stored);
    }
  }
}

// A sequence of one token attends to itself alone: out comes its value, as the cache has it.
TEST_P(QuantisedKvTest, AValueComesBackWithinHalfAStep) {
  NextStep({1});
  for (int layer : StaticLayers()) {
    const double steps = fast_->slot(layer).recent_group >= 0 ? INFINITY : layer == 0 ? 127 : 7;
    const at::Tensor v = RandomKv(1);
    ops::WriteKv(OnDevice(RandomKv(1)), OnDevice(v), layer, *fast_);
    const at::Tensor q = at::zeros({1, kQHeads * kHeadDim}, v.options());
    const at::Tensor out = ops::Attention(OnDevice(q), OnDevice(Shape(layer)), *fast_).cpu().to(at::kFloat);
    for (int64_t head = 0; head < kQHeads; ++head) {
      const at::Tensor expected = v.narrow(1, head / 3 * kHeadDim, kHeadDim).to(at::kFloat);
      const float largest = expected.abs().max().item<float>();
      const float error = (out.narrow(1, head * kHeadDim, kHeadDim) - expected).abs().max().item<float>();
      // Half a step, and what rounding the scale to 8 bits takes from the largest; the result's own rounding.
      const double rounding = GetParam().type == at::kFloat ? 1e-6 : 1.0 / 256;
      EXPECT_LE(error, largest * (0.5 / steps + (std::isinf(steps) ? 0 : 1.0 / 256) + rounding)) << layer;
    }
  }
}

TEST_P(QuantisedKvTest, ZerosStayZerosAndOneNaNSpoilsItsHead) {
  NextStep({1});
  for (int layer : StaticLayers()) {
    const at::Tensor q = Random(1, kQHeads * kHeadDim);
    at::Tensor v = at::zeros({1, kKvHeads * kHeadDim}, q.options());
    ops::WriteKv(OnDevice(v), OnDevice(v), layer, *fast_);
    const at::Tensor of_zeros = ops::Attention(OnDevice(q), OnDevice(Shape(layer)), *fast_).cpu();
    EXPECT_TRUE(at::equal(of_zeros, at::zeros({1, kQHeads * kHeadDim}, q.options())));
    v.select(1, kHeadDim + 5).fill_(std::numeric_limits<float>::quiet_NaN());
    ops::WriteKv(OnDevice(v), OnDevice(v), layer, *fast_);
    const at::Tensor out = ops::Attention(OnDevice(q), OnDevice(Shape(layer)), *fast_).cpu().to(at::kFloat);
    for (int64_t i = 0; i < out.size(1); ++i) {
      EXPECT_EQ(std::isnan(out[0][i].item<float>()), i >= out.size(1) / 2) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantisedKvTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
