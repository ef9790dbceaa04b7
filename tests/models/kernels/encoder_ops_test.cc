// Every operation of encoders against its ATen reference: every instruction set that the machine has, both types,
// encoders that begin in different steps beside rows that decode, over a poisoned arena, odd sizes.
#include "models/kernels/encoder_ops.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"
#include "models/kernels/ops.h"

namespace berth {
namespace {

constexpr int64_t kHeads = 6;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 20;
constexpr int64_t kReach = 11;
constexpr int64_t kEncoderTokens[] = {33, 1, 8, 100, 31};

struct Param {
  const cpu::Kernels* kernels;
  at::ScalarType type;
};

std::vector<Param> Params() {
  std::vector<Param> params;
  for (const cpu::Kernels* kernels : {&cpu::avx512::kKernels, &cpu::avx2::kKernels, &cpu::baseline::kKernels}) {
    if (!cpu::IsSupported(*kernels)) continue;
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) params.push_back({kernels, type});
  }
  return params;
}

std::string ParamName(const ::testing::TestParamInfo<Param>& info) {
  return std::string(info.param.kernels->capability) + (info.param.type == at::kFloat ? "_float32" : "_bfloat16");
}

class EncoderOpsTest : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    cpu::UseKernels(*GetParam().kernels);
    at::manual_seed(3);
    const DType dtype = GetParam().type == at::kFloat ? DType::kFloat32 : DType::kBFloat16;
    const KvSpec kv = {.kv_heads = kKvHeads, .key_dim = kHeadDim, .value_dim = kHeadDim, .dtype = dtype};
    const LayerCacheSpec layer = {.kv = kv, .cross = kv};
    const CachePlan plan = *BuildCachePlan({layer, layer}, /*block_tokens=*/8);
    fast_storage_ = *CreateHostStorage(int64_t{16} << 20);
    reference_storage_ = *CreateHostStorage(int64_t{16} << 20);
    for (ArenaStorage* storage : {fast_storage_.get(), reference_storage_.get()}) {
      storage->Poison(0, storage->size_bytes());
    }
    cache_ = *Cache::Create(plan, fast_storage_.get(), {.poison_returned_units = true});
    fast_ = std::make_unique<StepBatch>(plan, fast_storage_->base(), at::kCPU);
    reference_ = std::make_unique<StepBatch>(plan, reference_storage_->base(), at::kCPU);
    for (int64_t length : kEncoderTokens) leases_.push_back(cache_->NewLease(length));
    tokens_.assign(1000, 1);
  }

  // Grows each lease by its count and fills both batches. A row's encoder runs in its first step.
  void NextStep(const std::vector<int64_t>& counts) {
    StepPlan plan;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      StepRow row = {.lease = &leases_[i], .start = leases_[i].num_tokens()};
      ASSERT_TRUE(leases_[i].Grow(counts[i]).ok());
      row.tokens = absl::MakeConstSpan(tokens_).first(counts[i]);
      row.history = absl::MakeConstSpan(tokens_).first(row.start + counts[i]);
      if (row.start == 0) row.encoder_tokens = absl::MakeConstSpan(tokens_).first(leases_[i].num_cross_tokens());
      plan.rows.push_back(row);
    }
    fast_->Fill(plan);
    reference_->Fill(plan);
  }

  static std::vector<std::vector<int64_t>> Steps() {
    return {{1, 7, 0, 0, 2}, {1, 1, 1, 0, 1}, {17, 2, 1, 40, 9}, {1, 1, 1, 1, 1}, {3, 0, 25, 1, 1}};
  }

  int64_t EncoderTokens() const { return static_cast<int64_t>(fast_->encoder().positions.size()); }

  // A slice of a wider product, as layers give it.
  at::Tensor Random(int64_t tokens, int64_t heads) {
    return at::randn({tokens, heads * kHeadDim + 24}).to(GetParam().type).narrow(1, 8, heads * kHeadDim);
  }

  ops::SpanAttentionShape Shape(int layer, bool biased) const {
    ops::SpanAttentionShape shape = {.layer = layer, .q_heads = kHeads, .head_dim = kHeadDim, .scale = 0.3};
    if (biased) shape.distance_bias = bias_;
    return shape;
  }

  // As in ops_test.cc: float32 differs by the order of sums, bfloat16 by one rounding of the result.
  void ExpectClose(const at::Tensor& actual, const at::Tensor& expected) {
    const at::Tensor a = actual.to(at::kFloat);
    const at::Tensor e = expected.to(at::kFloat);
    const double relative = GetParam().type == at::kFloat ? 0 : 1.0 / 128;
    const double absolute = 2e-6 * e.abs().max().item<float>();
    ASSERT_TRUE(at::allclose(a, e, relative, absolute))
        << "largest difference " << (a - e).abs().max().item<float>() << ", largest value " << absolute / 2e-6;
  }

  std::unique_ptr<ArenaStorage> fast_storage_, reference_storage_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<StepBatch> fast_, reference_;
  std::vector<int32_t> tokens_;
  std::vector<SequenceLease> leases_;
  const at::Tensor bias_ = at::randn({kHeads, 2 * kReach + 1});
};

TEST_P(EncoderOpsTest, TheEncoderSeesItsWholeRow) {
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    if (fast_->encoder().empty()) continue;
    for (bool biased : {false, true}) {
      const at::Tensor q = Random(EncoderTokens(), kHeads);
      const at::Tensor k = Random(EncoderTokens(), kHeads);
      const at::Tensor v = Random(EncoderTokens(), kHeads);
      ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::EncoderAttention(q, k, v, Shape(0, biased), *fast_),
                                          reference::EncoderAttention(q, k, v, Shape(0, biased), *reference_)));
    }
  }
}

TEST_P(EncoderOpsTest, CrossAttentionReadsWhatTheFirstStepWrote) {
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    for (int layer : {0, 1}) {
      if (!fast_->encoder().empty()) {
        const at::Tensor k = Random(EncoderTokens(), kKvHeads);
        const at::Tensor v = Random(EncoderTokens(), kKvHeads);
        ops::WriteCross(k, v, layer, *fast_);
        reference::WriteCross(k, v, layer, *reference_);
      }
      const at::Tensor q = Random(fast_->num_tokens(), kHeads);
      ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::CrossAttention(q, Shape(layer, false), *fast_),
                                          reference::CrossAttention(q, Shape(layer, false), *reference_)));
    }
  }
}

// What one token computes must not depend on its chunk, nor on who else is in the step: equal bits.
TEST_P(EncoderOpsTest, NeitherChunksNorNeighboursChangeTheBits) {
  const int64_t total = 40;
  const int64_t encoder = kEncoderTokens[0];
  const at::Tensor q = Random(total, kHeads);
  const at::Tensor eq = Random(encoder + kEncoderTokens[3], kHeads);
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
        outputs.push_back(ops::EncoderAttention(e, e, e, Shape(0, true), *fast_).narrow(0, 0, encoder));
        const at::Tensor kv = e.narrow(1, 0, kKvHeads * kHeadDim);
        ops::WriteCross(kv, kv, 0, *fast_);
      }
      outputs.push_back(ops::CrossAttention(slice(q), Shape(0, false), *fast_).narrow(0, 0, count));
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

INSTANTIATE_TEST_SUITE_P(All, EncoderOpsTest, ::testing::ValuesIn(Params()), ParamName);

}  // namespace
}  // namespace berth
