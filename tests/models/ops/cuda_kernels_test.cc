// What the CUDA kernels promise beyond the references' results, emulated on the CPU: no GPU takes part. The results
// themselves are compared by the tests of the operations, for which these kernels are one more set.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

#include "models/kernels/cuda/device.cuh"
#include "models/ops/bidirectional_attention/bidirectional_attention.h"
#include "models/ops/causal_conv/causal_conv.h"
#include "models/ops/elementwise/elementwise.h"
#include "models/ops/gated_delta_net/gated_delta_net.h"
#include "models/ops/mamba/mamba.h"
#include "models/ops/paged_attention/paged_attention.h"
#include "models/ops/rg_lru/rg_lru.h"
#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kQHeads = 10;  // of a KV head more than a block's lanes hold for a tile of queries
constexpr int64_t kKvHeads = 2;
constexpr int64_t kKeyDim = 24;
constexpr int64_t kChannels = 40;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::vector<KernelParam> kParams = {{&ops::cpu::baseline::kKernels, at::kFloat, BerthCudaKernels()},
                                          {&ops::cpu::baseline::kKernels, at::kBFloat16, BerthCudaKernels()}};

// Layers 0 to 2: values as wide as each number of columns of a thread that there is code for; by matrices the second
// is the many heads' layer's.
constexpr int64_t kValueDims[] = {36, 200, 264};
constexpr int kLongLayers[] = {0, 3, 4};  // plain, sliding with sinks, int4 with the newest in full precision
constexpr int kStateLayer = 5;
constexpr int kManyHeadsLayer = 6;  // as many heads of keys as of queries
// Layers 0 to 2 have cross-attention too. Two encoders of several splits.
constexpr std::array<int64_t, 5> kEncoderTokens = {600, 270, 40, 19, 3};

class EmulatedCudaTest : public KernelTest {
 protected:
  void SetUp() override {
    compares_states_ = false;
    std::vector<LayerCacheSpec> specs;
    for (int64_t value_dim : kValueDims) {
      specs.push_back(
          {.kv = KvSpec{.kv_heads = kKvHeads, .key_dim = kKeyDim, .value_dim = value_dim, .dtype = dtype()}});
    }
    specs.push_back(specs[0]);
    for (int layer : {0, 1, 2}) specs[layer].cross = specs[layer].kv;
    specs.back().kv->window = 300;
    specs.back().kv->sink_tokens = 5;
    std::vector<LayerCacheSpec> quantised = {{.kv = specs[0].kv}};
    QuantiseKv(DType::kInt4, /*residual_tokens=*/40, &quantised);
    specs.push_back(quantised[0]);
    const StateSpec conv = {.name = "conv", .shape = {3, kChannels}, .dtype = dtype()};
    specs.push_back({.states = {conv,
                                {.name = "mamba", .shape = {16, kChannels}},
                                {.name = "mamba2", .shape = {2, 16, 20}},
                                {.name = "delta", .shape = {2, 20, 24}},
                                {.name = "lru", .shape = {kChannels}}}});
    specs.push_back({.kv = KvSpec{.kv_heads = kQHeads, .key_dim = 64, .value_dim = 100, .dtype = dtype()}});
    SetUpCache(specs, kEncoderTokens);
  }
  void TearDown() override { cuda_emulation::SetOrder(cuda_emulation::Order::kAscending); }

  ops::AttentionShape Shape(int layer) const {
    return {.layer = layer, .q_heads = kQHeads, .head_dim = KeyDim(layer), .scale = 0.3, .sinks = sinks_};
  }
  const KvSpec& Kv(int layer) const { return fast_->group(fast_->slot(layer).kv_group).kv; }
  int64_t KeyDim(int layer) const { return Kv(layer).key_dim; }
  int64_t ValueDim(int layer) const { return Kv(layer).value_dim; }

  // The next tokens' keys and values.
  void Write(int layer) {
    const at::Tensor k = Random(fast_->num_tokens(), Kv(layer).kv_heads * KeyDim(layer));
    const at::Tensor v = Random(fast_->num_tokens(), Kv(layer).kv_heads * ValueDim(layer));
    ops::WriteKv(k, v, layer, *fast_);
    reference::WriteKv(k, v, layer, *reference_);
  }
  // And their attention, by the kernels and by the reference.
  void ExpectAttention(int layer) {
    Write(layer);
    const at::Tensor q = Random(fast_->num_tokens(), kQHeads * KeyDim(layer));
    ExpectClose(ops::Attention(q, Shape(layer), *fast_), reference::Attention(q, Shape(layer), *reference_));
  }

  ops::BidirectionalAttentionShape SpanShape(int layer) const {
    return {.layer = layer, .q_heads = kQHeads, .head_dim = kKeyDim, .scale = 0.3, .distance_bias = bias_};
  }

  // What the layer keeps of the output of the step's encoders.
  void WriteCross(int layer) {
    if (fast_->encoder().empty()) return;
    const int64_t tokens = fast_->encoder().num_tokens();
    const at::Tensor k = Random(tokens, kKvHeads * kKeyDim);
    const at::Tensor v = Random(tokens, kKvHeads * ValueDim(layer));
    ops::WriteCross(k, v, layer, *fast_);
    reference::WriteCross(k, v, layer, *reference_);
  }
  void ExpectCrossAttention(int layer) {
    WriteCross(layer);
    const at::Tensor q = Random(fast_->num_tokens(), kQHeads * kKeyDim);
    ExpectClose(ops::CrossAttention(q, SpanShape(layer), *fast_),
                reference::CrossAttention(q, SpanShape(layer), *reference_));
  }

  // Runs one step of every kernel on a new sequence and on one that continues. Returns all their results.
  at::Tensor RunAll() {
    at::manual_seed(5);
    for (SequenceLease& lease : leases_) lease.Reset();
    std::vector<at::Tensor> results;
    for (const std::vector<int64_t>& counts : {std::vector<int64_t>{0, 11, 0, 2}, {0, 1, 0, 9}}) {
      NextStep(counts);
      const int64_t tokens = fast_->num_tokens();
      const at::Tensor weights = at::randn({16, kChannels});
      const auto of = [&](int64_t columns) { return Random(tokens, columns); };
      const auto keep = [&](const at::Tensor& x) { results.push_back(x.to(at::kFloat).flatten()); };
      for (int layer : kLongLayers) {
        ops::WriteKv(of(kKvHeads * kKeyDim), of(kKvHeads * ValueDim(layer)), layer, *fast_);
        keep(ops::Attention(of(kQHeads * kKeyDim), Shape(layer), *fast_));
      }
      WriteCross(0);
      keep(ops::CrossAttention(of(kQHeads * kKeyDim), SpanShape(0), *fast_));
      keep(ops::RmsNorm(of(3000), at::ones({3000}), 1e-5, execution_));
      keep(ops::RmsNorm(of(3 * kChannels), weights[0], 1e-5, execution_));
      keep(ops::CausalConv(of(kChannels), weights.narrow(0, 0, 4), weights[5], kStateLayer, 0, *fast_));
      const auto states = [&] { return of(16).unflatten(1, {1, 16}); };
      keep(ops::MambaScan({of(kChannels), of(kChannels), of(kChannels), states(), states()}, -weights.abs(), weights[0],
                          weights[1], kStateLayer, 1, *fast_));
      const at::Tensor by_head = at::randn({3, 2});
      keep(ops::Mamba2Scan(of(2 * 20 + 2 * 16), of(2), -by_head[0].abs(), by_head[1], by_head[2],
                           {.layer = kStateLayer, .state = 2, .heads = 2, .head_dim = 20, .state_dim = 16, .groups = 1},
                           *fast_));
      keep(ops::GatedDeltaNet(
          of(2 * 2 * 20 + 2 * 24), of(2), of(2), -by_head[0].abs(), by_head[1],
          {.layer = kStateLayer, .state = 3, .k_heads = 2, .v_heads = 2, .key_dim = 20, .value_dim = 24}, *fast_));
      keep(ops::RgLru(of(kChannels), of(2 * kChannels).unflatten(1, {1, 2 * kChannels}),
                      {weights[0], weights[1], -weights[2].abs()}, kStateLayer, 4, *fast_));
    }
    NextStep({0, 0, 1, 0, 1});
    const at::Tensor e = Random(kEncoderTokens[2] + kEncoderTokens[4], kQHeads * kKeyDim);
    results.push_back(ops::EncoderAttention(e, e, e, SpanShape(0), *fast_).to(at::kFloat).flatten());
    return at::cat(results, 0);
  }

  const at::Tensor sinks_ = at::randn({kQHeads});
  const at::Tensor bias_ = at::randn({kQHeads, 2 * 150 + 1});
};

TEST_P(EmulatedCudaTest, ValuesOfEveryWidth) {
  for (const auto& counts : {std::vector<int64_t>{3, 19}, {1, 1}}) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    for (int layer : {0, 1, 2}) {
      ASSERT_NO_FATAL_FAILURE(ExpectAttention(layer)) << layer;
      ASSERT_NO_FATAL_FAILURE(ExpectCrossAttention(layer)) << layer;
    }
  }
}

// With a head of keys for each of the queries, a block of threads takes several tiles of queries.
TEST_P(EmulatedCudaTest, TilesOfARowShareABlock) {
  for (const auto& counts : {std::vector<int64_t>{70, 17, 1, 16}, {1, 33, 64, 15}, {20, 1}}) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    ASSERT_NO_FATAL_FAILURE(ExpectAttention(kManyHeadsLayer));
  }
}

// Rows of several splits: in decode, where they are divided among blocks, beside a prefill, where they are not.
TEST_P(EmulatedCudaTest, LongRowsAreSplit) {
  ASSERT_NO_FATAL_FAILURE(NextStep({600, 250}));
  for (int layer : kLongLayers) Write(layer);
  WriteCross(0);
  for (const auto& counts : {std::vector<int64_t>{1, 3}, {1, 8, 20}, {2, 1, 1}, {10, 1}}) {
    ASSERT_NO_FATAL_FAILURE(NextStep(counts));
    for (int layer : kLongLayers) ASSERT_NO_FATAL_FAILURE(ExpectAttention(layer)) << layer;
    ASSERT_NO_FATAL_FAILURE(ExpectCrossAttention(0));
  }
}

// A prefill's last token, and the same token decoded: equal bits, though one block has its keys in the first case, and
// several in the second.
TEST_P(EmulatedCudaTest, SplitsDoNotChangeTheBits) {
  constexpr int64_t kCompared = 24;
  const int64_t total = 2 * ops::kSplitTokens + kCompared;
  const at::Tensor q = Random(total, kQHeads * kKeyDim);
  const at::Tensor k = Random(total, kKvHeads * kKeyDim);
  const at::Tensor v = Random(total, kKvHeads * kValueDims[0]);
  const at::Tensor cross_k = Random(kEncoderTokens[0], kKvHeads * kKeyDim);
  const at::Tensor cross_v = Random(kEncoderTokens[0], kKvHeads * kValueDims[0]);
  const auto run = [&](const std::vector<int64_t>& chunks) {
    leases_[0].Reset();
    std::vector<at::Tensor> outputs;
    int64_t done = total - kCompared;
    NextStep({done});
    for (int layer : kLongLayers) ops::WriteKv(k.narrow(0, 0, done), v.narrow(0, 0, done), layer, *fast_);
    ops::WriteCross(cross_k, cross_v, 0, *fast_);
    for (int64_t count : chunks) {
      NextStep({count});
      std::vector<at::Tensor> columns;
      for (int layer : kLongLayers) {
        ops::WriteKv(k.narrow(0, done, count), v.narrow(0, done, count), layer, *fast_);
        columns.push_back(ops::Attention(q.narrow(0, done, count), Shape(layer), *fast_));
      }
      columns.push_back(ops::CrossAttention(q.narrow(0, done, count), SpanShape(0), *fast_));
      outputs.push_back(at::cat(columns, 1));
      done += count;
    }
    return at::cat(outputs, 0);
  };
  const at::Tensor whole = run({kCompared});
  EXPECT_TRUE(at::equal(whole, run({12, 1, 3, 8})));
  EXPECT_TRUE(at::equal(whole, run({8, 1, 1, 14})));
}

class EmulatedGraphStepTest : public KernelTest {};

// Beside many rows, few blocks are left for each row's keys, and one has several parts of a long row's.
TEST_P(EmulatedGraphStepTest, TheGraphsSizeDoesNotChangeTheBits) {
  const KvSpec kv = {.kv_heads = kKvHeads, .key_dim = kKeyDim, .value_dim = 36, .dtype = dtype()};
  KvSpec window = kv;
  window.window = 700;
  SetUpCache({{.kv = kv}, {.kv = window}});
  const int64_t length = 11 * ops::kSplitTokens + 3;
  ASSERT_NO_FATAL_FAILURE(NextStep({length}));
  for (int layer : {0, 1}) {
    ops::WriteKv(OnDevice(Random(length, kKvHeads * kKeyDim)), OnDevice(Random(length, kKvHeads * 36)), layer, *fast_);
  }
  StepPlan step = GrowAll({1, 1});
  for (StepRow& row : step.rows) row.sample = true;
  const at::Tensor q = OnDevice(Random(256, kQHeads * kKeyDim));
  for (int layer : {0, 1}) {
    const auto attend = [&](int64_t rows) {
      const ops::AttentionShape shape = {.layer = layer, .q_heads = kQHeads, .head_dim = kKeyDim, .scale = 0.3};
      return ops::Attention(q.narrow(0, 0, rows), shape, *fast_).narrow(0, 0, 2);
    };
    fast_->Fill(step);
    for (int l : {0, 1}) {  // the new tokens
      at::manual_seed(9);
      ops::WriteKv(OnDevice(Random(2, kKvHeads * kKeyDim)), OnDevice(Random(2, kKvHeads * 36)), l, *fast_);
    }
    const at::Tensor alone = attend(2);
    for (int64_t rows : {2, 8, 256}) {
      fast_->Fill(step, {.rows = rows, .keys = 4096});
      EXPECT_TRUE(at::equal(alone, attend(rows))) << layer << " " << rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedGraphStepTest, ::testing::ValuesIn(kParams), KernelParamName);

// A missing barrier, or blocks that read what others write, would show in one order of threads or the other.
TEST_P(EmulatedCudaTest, TheOrderOfThreadsAndBlocksChangesNothing) {
  const at::Tensor ascending = RunAll();
  cuda_emulation::SetOrder(cuda_emulation::Order::kDescending);
  EXPECT_TRUE(at::equal(ascending, RunAll()));
  for (uint32_t seed : {1, 2}) {
    cuda_emulation::SetOrder(cuda_emulation::Order::kRandom, seed);
    EXPECT_TRUE(at::equal(ascending, RunAll())) << seed;
  }
}

// On a GPU both would end the server.
TEST_P(EmulatedCudaTest, TheHostCannotUseTheArenaOrTheTables) {
  ASSERT_NO_FATAL_FAILURE(NextStep({2, 1}));
  const volatile char* const arena = fast_->arena();
  EXPECT_EXIT(std::exit(arena[0]), ::testing::KilledBySignal(SIGSEGV), "");
  const volatile int64_t& start = fast_->tables().decoder.rows[0].start;
  EXPECT_EXIT(std::exit(static_cast<int>(start)), ::testing::KilledBySignal(SIGSEGV), "");
  const volatile int64_t* const ids = fast_->token_ids().const_data_ptr<int64_t>();
  EXPECT_EXIT(std::exit(static_cast<int>(ids[0])), ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EQ(fast_->token_ids()[0].item<int64_t>(), 1);  // a copy
}

TEST_P(EmulatedCudaTest, SizesWithoutCodeGoToTheReference) {
  const ops::Mamba2Shape shape = {
      .layer = kStateLayer, .state = 2, .heads = 1, .head_dim = 2, .state_dim = 320, .groups = 1};
  ASSERT_NO_FATAL_FAILURE(NextStep({2}));
  const at::Tensor xbc = Random(2, 2 + 2 * 320);
  const at::Tensor dt = Random(2, 1);
  const at::Tensor ones = at::ones({1});
  EXPECT_TRUE(at::equal(ops::Mamba2Scan(xbc, dt, -ones, ones, ones, shape, *fast_),
                        reference::Mamba2Scan(xbc, dt, -ones, ones, ones, shape, *reference_)));
  const ops::BidirectionalAttentionShape wide = {.q_heads = 1, .head_dim = 520};
  const at::Tensor e = Random(kEncoderTokens[0], 520);
  EXPECT_TRUE(
      at::equal(ops::EncoderAttention(e, e, e, wide, *fast_), reference::EncoderAttention(e, e, e, wide, *reference_)));
}

// The next call, of ATen's, would throw an error that the runtime keeps.
TEST_P(EmulatedCudaTest, AFailedLaunchIsReportedOnce) {
  const at::Tensor x = Random(2, 64);
  cuda_emulation::CurrentErrors().of_launches = cudaErrorIllegalAddress;
  try {
    ops::RmsNorm(x, at::ones({64}), 1e-5, execution_);
    ADD_FAILURE() << "launched";
  } catch (const c10::AcceleratorError& error) {
    EXPECT_EQ(error.get_error_code(), cudaErrorIllegalAddress);
  }
  cuda_emulation::CurrentErrors().of_launches = cudaSuccess;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// Only a block that is too large for the device has a reference in its place. Any other error is one.
TEST_P(EmulatedCudaTest, OnlySizesGoToTheReference) {
  const auto attribute = [](int64_t shared_bytes) {
    return ops::cuda::Launch(
        +[] {}, dim3(1), 32, shared_bytes, nullptr);
  };
  EXPECT_EQ(attribute(int64_t{kMostSharedBytes} + 1), ops::cuda::kNotCovered);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cuda_emulation::CurrentErrors().of_attributes = cudaErrorNoKernelImageForDevice;
  EXPECT_EQ(attribute(int64_t{64} << 10), cudaErrorNoKernelImageForDevice);
  cuda_emulation::CurrentErrors().of_attributes = cudaSuccess;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// The call takes as long as a launch.
TEST(EmulatedCudaLaunchTest, AKernelIsAllowedLargeBlocksOnce) {
  const int before = cuda_emulation::CurrentErrors().num_attribute_calls;
  for (const int64_t kib : {40, 64, 200, 64}) {
    const int result = ops::cuda::Launch(
        +[] {}, dim3(1), 32, kib << 10, nullptr);
    EXPECT_EQ(result, ops::cuda::kLaunched) << kib;
  }
  EXPECT_EQ(cuda_emulation::CurrentErrors().num_attribute_calls - before, 1);
}

TEST_P(EmulatedCudaTest, GreedyIsTheLowestOfTheLargest) {
  constexpr int32_t kBad = -2;
  const int64_t vocab = 5003;
  at::Tensor logits = at::randn({7, vocab});
  logits[0][4999] = 50;
  logits[1].fill_(3);
  logits[2][4000] = logits[2][17] = logits[2][4001] = 50;
  logits[3][4998] = std::nanf("");
  logits[4][3] = kInfinity;
  logits[5].fill_(-kInfinity);
  logits[6].fill_(-kInfinity);
  logits[6][77] = -1;
  std::vector<int32_t> tokens(7);
  const at::Tensor typed = logits.to(GetParam().type);
  const ops::GreedyArgs args = {.logits = typed.const_data_ptr(),
                                .rows = 7,
                                .stride = vocab,
                                .vocab = vocab,
                                .tokens = tokens.data(),
                                .bad_token = kBad};
  ASSERT_EQ(BerthCudaKernels()->greedy[ops::TypeIndex(dtype())](args, ops::cuda::LaunchParams()), ops::cuda::kLaunched);
  EXPECT_EQ(tokens, (std::vector<int32_t>{4999, 0, 17, kBad, kBad, kBad, 77}));
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedCudaTest, ::testing::ValuesIn(kParams), KernelParamName);

}  // namespace
}  // namespace berth
