// Every operation of encoders against its ATen reference, on every instruction set that the machine has and with the
// CUDA kernels emulated. Cases: both types, odd sizes, and encoders that begin in different steps beside rows that
// decode, over a poisoned arena.
#include "models/ops/bidirectional_attention/bidirectional_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kHeads = 6;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 44;  // a panel and a part of one
constexpr int64_t kReach = 11;
constexpr std::array<int64_t, 5> kEncoderTokens = {33, 1, 8, 100, 31};

class BidirectionalAttentionTest : public KernelTest {
 protected:
  void SetUp() override {
    const KvSpec kv = {.kv_heads = kKvHeads, .key_dim = kHeadDim, .value_dim = kHeadDim, .dtype = dtype()};
    const LayerCacheSpec layer = {.kv = kv, .cross = kv};
    SetUpCache({layer, layer}, kEncoderTokens);
  }

  // Encoders of several rows in one step, and of none.
  static std::vector<std::vector<int64_t>> Steps() {
    return {{1, 7, 0, 0, 2}, {1, 1, 1, 0, 1}, {17, 2, 1, 40, 9}, {1, 1, 1, 1, 1}, {3, 0, 25, 1, 1}};
  }

  int64_t EncoderTokens() const { return fast_->encoder().num_tokens(); }

  at::Tensor RandomHeads(int64_t tokens, int64_t heads) { return Random(tokens, heads * kHeadDim); }

  ops::BidirectionalAttentionShape Shape(int layer, bool biased) const {
    ops::BidirectionalAttentionShape shape = {.layer = layer, .q_heads = kHeads, .head_dim = kHeadDim, .scale = 0.3};
    if (biased) shape.distance_bias = bias_;
    return shape;
  }

  const at::Tensor bias_ = at::randn({kHeads, 2 * kReach + 1});
};

TEST_P(BidirectionalAttentionTest, TheEncoderSeesItsWholeRow) {
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    if (fast_->encoder().empty()) continue;
    for (bool biased : {false, true}) {
      const at::Tensor q = RandomHeads(EncoderTokens(), kHeads);
      const at::Tensor k = RandomHeads(EncoderTokens(), kHeads);
      const at::Tensor v = RandomHeads(EncoderTokens(), kHeads);
      ASSERT_NO_FATAL_FAILURE(
          ExpectClose(ops::EncoderAttention(OnDevice(q), OnDevice(k), OnDevice(v), OnDevice(Shape(0, biased)), *fast_),
                      reference::EncoderAttention(q, k, v, Shape(0, biased), *reference_)));
    }
  }
}

TEST_P(BidirectionalAttentionTest, CrossAttentionReadsWhatTheFirstStepWrote) {
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    for (int layer : {0, 1}) {
      if (!fast_->encoder().empty()) {
        const at::Tensor k = RandomHeads(EncoderTokens(), kKvHeads);
        const at::Tensor v = RandomHeads(EncoderTokens(), kKvHeads);
        ops::WriteCross(OnDevice(k), OnDevice(v), layer, *fast_);
        reference::WriteCross(k, v, layer, *reference_);
      }
      const at::Tensor q = RandomHeads(fast_->num_tokens(), kHeads);
      for (bool biased : {false, true}) {
        ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::CrossAttention(OnDevice(q), OnDevice(Shape(layer, biased)), *fast_),
                                            reference::CrossAttention(q, Shape(layer, biased), *reference_)));
      }
    }
  }
}

TEST_P(BidirectionalAttentionTest, EveryOperationRunsItsKernels) {
  NextStep({3, 1, 0, 0, 9});
  EXPECT_TRUE(at::equal(fast_->tables().encoder.token_ids.cpu(), reference_->tables().encoder.token_ids));
  const at::Tensor e = RandomHeads(EncoderTokens(), kHeads);
  const at::Tensor kv = e.narrow(1, 0, kKvHeads * kHeadDim);
  const at::Tensor q = RandomHeads(fast_->num_tokens(), kHeads);
  const std::function<void()> operations[] = {
      [&] { ops::EncoderAttention(OnDevice(e), OnDevice(e), OnDevice(e), OnDevice(Shape(0, true)), *fast_); },
      [&] { ops::WriteCross(OnDevice(kv), OnDevice(kv), 0, *fast_); },
      [&] { ops::CrossAttention(OnDevice(q), OnDevice(Shape(0, true)), *fast_); }};
  for (const auto& operation : operations) {
    const int64_t blocks = cuda_emulation::NumBlocks();
    operation();
    EXPECT_EQ(cuda_emulation::NumBlocks() > blocks, GetParam().emulated != nullptr);
  }
}

// What one token computes must not depend on its chunk, nor on who else is in the step: equal bits.
TEST_P(BidirectionalAttentionTest, NeitherChunksNorNeighboursChangeTheBits) {
  const int64_t total = 40;
  const int64_t encoder = kEncoderTokens[0];
  const at::Tensor q = RandomHeads(total, kHeads);
  const at::Tensor eq = RandomHeads(encoder + kEncoderTokens[3], kHeads);
  const auto run = [&](const std::vector<int64_t>& chunks, bool neighbour) {
    for (SequenceLease& lease : leases_) lease.Reset();
    std::vector<at::Tensor> outputs;
    int64_t done = 0;
    for (int64_t count : chunks) {
      NextStep({count, 0, 0, neighbour ? count : 0, 0});
      // The neighbour computes the same; its tokens come second.
      const auto slice = [&](const at::Tensor& t) {
        const at::Tensor own = t.narrow(0, done, count);
        return neighbour ? at::cat({own, own}, 0) : own;
      };
      if (done == 0) {
        const at::Tensor e = eq.narrow(0, 0, EncoderTokens());
        outputs.push_back(ops::EncoderAttention(OnDevice(e), OnDevice(e), OnDevice(e), OnDevice(Shape(0, true)), *fast_)
                              .narrow(0, 0, encoder));
        const at::Tensor kv = e.narrow(1, 0, kKvHeads * kHeadDim);
        ops::WriteCross(OnDevice(kv), OnDevice(kv), 0, *fast_);
      }
      outputs.push_back(ops::CrossAttention(OnDevice(slice(q)), OnDevice(Shape(0, false)), *fast_).narrow(0, 0, count));
      done += count;
    }
    return at::cat(outputs, 0);
  };
  const at::Tensor whole = run({total}, false);
  for (bool neighbour : {false, true}) {
    for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{1, 7, 19, 13}, {39, 1}, {16, 16, 8}}) {
      EXPECT_TRUE(at::equal(whole, run(chunks, neighbour)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BidirectionalAttentionTest, ::testing::ValuesIn(KernelParamsWithCuda()), KernelParamName);

}  // namespace
}  // namespace berth
