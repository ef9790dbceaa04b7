// Every operation against its ATen reference: every instruction set that the machine has, both types, ragged rows in
// several chunks over a poisoned arena, odd sizes.
#include "models/kernels/ops.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"

namespace berth {
namespace {

constexpr int64_t kQHeads = 6;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 20;
constexpr int kAttentionLayers[] = {0, 1, 3};  // static, sliding, chunked
constexpr int64_t kChannels = 301;             // more than one conv chunk, no multiple of a vector
constexpr int64_t kConvKernel = 4;
constexpr ops::Mamba2Shape kMamba = {
    .layer = 2, .state = 1, .heads = 6, .head_dim = 5, .state_dim = 7, .groups = 2, .dt_min = 0.01, .dt_max = 1.5};

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

class OpsTest : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    cpu::UseKernels(*GetParam().kernels);
    at::manual_seed(3);
    const DType dtype = GetParam().type == at::kFloat ? DType::kFloat32 : DType::kBFloat16;
    const KvSpec kv = {.kv_heads = kKvHeads, .key_dim = kHeadDim, .value_dim = kHeadDim, .dtype = dtype};
    KvSpec sliding = kv;
    sliding.window = 13;
    KvSpec chunked = kv;
    chunked.chunk = 11;
    const std::vector<StateSpec> states = {
        {.name = "conv", .shape = {kConvKernel - 1, kChannels}, .dtype = dtype},
        {.name = "recurrent", .shape = {kMamba.heads, kMamba.head_dim, kMamba.state_dim}}};
    const CachePlan plan =
        *BuildCachePlan({{.kv = kv}, {.kv = sliding}, {.states = states}, {.kv = chunked}}, /*block_tokens=*/8);
    fast_storage_ = *CreateHostStorage(plan.slab_bytes * 64);
    reference_storage_ = *CreateHostStorage(plan.slab_bytes * 64);
    for (ArenaStorage* storage : {fast_storage_.get(), reference_storage_.get()}) {
      storage->Poison(0, storage->size_bytes());
    }
    cache_ = *Cache::Create(plan, fast_storage_.get(), {.poison_returned_units = true});
    fast_ = std::make_unique<StepBatch>(plan, fast_storage_->base(), at::kCPU);
    reference_ = std::make_unique<StepBatch>(plan, reference_storage_->base(), at::kCPU);
    for (int i = 0; i < 5; ++i) leases_.push_back(cache_->NewLease());
  }

  // Grows each lease by its count and fills both batches.
  void NextStep(const std::vector<int64_t>& counts) {
    StepPlan plan;
    tokens_.assign(1000, 1);
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      const int64_t start = leases_[i].num_tokens();
      ASSERT_TRUE(leases_[i].Grow(counts[i]).ok());
      plan.rows.push_back(
          {.lease = &leases_[i], .tokens = absl::MakeConstSpan(tokens_).subspan(0, counts[i]), .start = start});
      plan.num_tokens += counts[i];
    }
    fast_->Fill(plan);
    reference_->Fill(plan);
  }

  // Prefill of ragged lengths, continuation in chunks shorter than the convolution, decode, and mixes of them.
  static std::vector<std::vector<int64_t>> Steps() {
    return {{1, 7, 40, 0, 2}, {1, 1, 1, 33, 1}, {17, 2, 1, 1, 9}, {1, 1, 1, 1, 1}, {3, 0, 25, 1, 1}};
  }

  at::Tensor Random(int64_t tokens, int64_t columns) {
    // A slice of a wider product, as layers give it.
    return at::randn({tokens, columns + 24}).to(GetParam().type).narrow(1, 8, columns);
  }

  // float32: only the order of sums differs, so the error is a few roundings of the largest terms. bfloat16: the same,
  // and then one rounding of each result to 8 bits may fall the other way.
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
};

TEST_P(OpsTest, RmsNorm) {
  for (int64_t dim : {1, 20, 133}) {
    const at::Tensor x = Random(11, 3 * dim);
    const at::Tensor weight = at::randn({dim});
    ExpectClose(ops::RmsNorm(x, weight, 1e-5), reference::RmsNorm(x, weight, 1e-5));
    at::Tensor in_place = x.clone();
    ops::RmsNormInPlace(in_place, weight, 1e-5);
    ExpectClose(in_place, reference::RmsNorm(x, weight, 1e-5));
  }
}

TEST_P(OpsTest, GatedRmsNorm) {
  const at::Tensor x = Random(9, 3 * 22);
  const at::Tensor gate = Random(9, 3 * 22);
  const at::Tensor weight = at::randn({3 * 22});
  for (bool gate_first : {false, true}) {
    ExpectClose(ops::GatedRmsNorm(x, gate, weight, 1e-5, 3, gate_first),
                reference::GatedRmsNorm(x, gate, weight, 1e-5, 3, gate_first));
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
    ops::Rotary(fast, angles.cos(), angles.sin(), fast_->positions(), kHeadDim);
    reference::Rotary(expected, angles.cos(), angles.sin(), fast_->positions(), kHeadDim);
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
      for (double softcap : {0.0, 1.5}) {
        ops::AttentionShape shape = {
            .layer = layer, .q_heads = kQHeads, .head_dim = kHeadDim, .scale = 0.3, .softcap = softcap};
        if (softcap == 0) shape.sinks = at::randn({kQHeads}) * 3;
        ASSERT_NO_FATAL_FAILURE(
            ExpectClose(ops::Attention(q, shape, *fast_), reference::Attention(q, shape, *reference_)));
      }
    }
  }
}

TEST_P(OpsTest, CausalConvCarriesItsState) {
  const at::Tensor weight = at::randn({kConvKernel, kChannels});
  const at::Tensor bias = at::randn({kChannels});
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    const at::Tensor x = Random(fast_->num_tokens(), kChannels);
    ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::CausalConv(x, weight, bias, 2, 0, *fast_),
                                        reference::CausalConv(x, weight, bias, 2, 0, *reference_)));
  }
}

TEST_P(OpsTest, Mamba2ScanCarriesItsState) {
  const at::Tensor a = -at::rand({kMamba.heads}) * 3;
  const at::Tensor d = at::randn({kMamba.heads});
  const at::Tensor dt_bias = at::randn({kMamba.heads});
  for (const auto& counts : Steps()) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    const at::Tensor xbc =
        Random(fast_->num_tokens(), kMamba.heads * kMamba.head_dim + 2 * kMamba.groups * kMamba.state_dim);
    const at::Tensor dt = Random(fast_->num_tokens(), kMamba.heads);
    ASSERT_NO_FATAL_FAILURE(ExpectClose(ops::Mamba2Scan(xbc, dt, a, d, dt_bias, kMamba, *fast_),
                                        reference::Mamba2Scan(xbc, dt, a, d, dt_bias, kMamba, *reference_)));
  }
}

TEST_P(OpsTest, GroupedLinearLeavesIdleExpertsAlone) {
  const at::Tensor x = Random(9, 20);
  const at::Tensor weight = at::randn({5, 7, 20}).to(GetParam().type);
  const at::Tensor bias = at::randn({5, 7}).to(GetParam().type);
  weight[1].fill_(std::numeric_limits<float>::quiet_NaN());
  const std::vector<int64_t> ends = {4, 4, 5, 9, 9};
  for (const at::Tensor& b : {at::Tensor(), bias}) {
    const at::Tensor out = ops::GroupedLinear(x, weight, b, ends);
    for (int64_t e : {0, 2, 3}) {
      const int64_t begin = e == 0 ? 0 : ends[e - 1];
      const at::Tensor rows = x.narrow(0, begin, ends[e] - begin);
      ExpectClose(out.narrow(0, begin, ends[e] - begin), at::linear(rows, weight[e], b.defined() ? b[e] : b));
    }
  }
}

// What one token computes must not depend on its chunk: equal bits, whatever the steps' lengths.
TEST_P(OpsTest, ChunksDoNotChangeTheBits) {
  const int64_t total = 50;
  const at::Tensor q = Random(total, kQHeads * kHeadDim);
  const at::Tensor k = Random(total, kKvHeads * kHeadDim);
  const at::Tensor v = Random(total, kKvHeads * kHeadDim);
  const at::Tensor x = Random(total, kChannels);
  const at::Tensor weight = at::randn({kConvKernel, kChannels});
  const auto run = [&](const std::vector<int64_t>& chunks) {
    leases_[0].Reset();
    std::vector<at::Tensor> outputs;
    int64_t done = 0;
    for (int64_t count : chunks) {
      NextStep({count});
      const auto slice = [&](const at::Tensor& t) { return t.narrow(0, done, count); };
      std::vector<at::Tensor> columns = {ops::CausalConv(slice(x), weight, {}, 2, 0, *fast_)};
      for (int layer : kAttentionLayers) {
        ops::WriteKv(slice(k), slice(v), layer, *fast_);
        const ops::AttentionShape shape = {.layer = layer, .q_heads = kQHeads, .head_dim = kHeadDim, .scale = 0.3};
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

INSTANTIATE_TEST_SUITE_P(All, OpsTest, ::testing::ValuesIn(Params()), ParamName);

}  // namespace
}  // namespace berth
