// Which steps become CUDA graphs, and when they are recorded anew. The recorder is a fake: a graph computes its work at
// each launch, from where the recording's step had it. With BERTH_TEST_DEVICE the graphs are a GPU's.
#include "models/runner/decode_graphs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"
#include "tests/models/test_device.h"

namespace berth {
namespace {

// Each token's logits are its id and its position.
class EchoModel final : public Model {
 public:
  std::vector<LayerCacheSpec> cache_specs() const override {
    return {{.kv = KvSpec{.kv_heads = 1, .key_dim = 4, .value_dim = 4, .dtype = DType::kFloat32}}};
  }
  int64_t vocab_size() const override { return 2; }
  int64_t hidden_size() const override { return 4; }
  at::Tensor Forward(const StepBatch& batch) const override {
    if (asks_the_host) batch.decoder();
    if (!has_memory) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "out of memory");
    num_rows.push_back(batch.num_rows());
    return at::stack({batch.token_ids(), batch.device_positions()}, 1)
        .index_select(0, batch.sample_tokens())
        .to(at::kFloat);
  }

  bool asks_the_host = false;
  bool has_memory = true;
  mutable std::vector<int64_t> num_rows;  // of each step that it computed
};

class FakeRecorder final : public ops::cuda::GraphRecorder {
 public:
  std::unique_ptr<ops::cuda::Graph> Record(const std::function<void()>& work) override {
    if (fails_with != 0) throw c10::AcceleratorError({__func__, __FILE__, 1}, fails_with, "CUDA error");
    if (GetTestDevice() != nullptr) {
      auto graph = GetTestDevice()->recorder->Record(work);
      ++recorded;
      return graph;
    }
    work();  // as when it is recorded, the host's part of it runs
    ++recorded;
    return std::make_unique<FakeGraph>(work);
  }

  int recorded = 0;
  int32_t fails_with = 0;  // a cudaError_t

 private:
  struct FakeGraph final : public ops::cuda::Graph {
    explicit FakeGraph(std::function<void()> work) : work(std::move(work)) {}
    void Launch() override { work(); }
    std::function<void()> work;
  };
};

class DecodeGraphsTest : public ::testing::Test {
 protected:
  DecodeGraphsTest()
      : plan_(*BuildCachePlan(model_.cache_specs(), /*block_tokens=*/16)),
        storage_(*CreateDeviceStorage(Device(), int64_t{64} << 20)),
        cache_(*Cache::Create(plan_, storage_.get(), {})),
        batch_(plan_, storage_->base(), Device(), &execution_, /*copy_tables=*/true),
        graphs_(&model_, &recorder_, kSequenceTokens, [this](const std::string& why) { told_.push_back(why); }) {}

  static constexpr int64_t kSequenceTokens = 8192;
  static at::Device Device() { return GetTestDevice() != nullptr ? GetTestDevice()->device : at::Device(at::kCPU); }

  // A step of `rows` sequences, each of whose token is its index, at position `start`.
  at::Tensor Forward(int rows, int64_t start) {
    leases_.clear();
    tokens_.clear();
    StepPlan step;
    for (int32_t i = 0; i < rows; ++i) tokens_.push_back(i);
    for (int i = 0; i < rows; ++i) {
      leases_.push_back(cache_->NewLease());
      EXPECT_TRUE(leases_.back().Grow(start + 1).ok());
    }
    for (int i = 0; i < rows; ++i) {
      step.rows.push_back({.lease = &leases_[i],
                           .tokens = absl::MakeConstSpan(tokens_).subspan(i, 1),
                           .start = start,
                           .sample = true,
                           .drafts = absl::MakeConstSpan(tokens_).first(num_drafts_)});
    }
    return graphs_.Forward(step, &batch_);
  }
  void ExpectLogits(const at::Tensor& logits, int rows, int64_t start) {
    ASSERT_TRUE(logits.defined());
    ASSERT_EQ(logits.sizes(), (at::IntArrayRef{rows, 2}));
    for (int i = 0; i < rows; ++i) {
      EXPECT_EQ(logits[i][0].item<float>(), i);
      EXPECT_EQ(logits[i][1].item<float>(), static_cast<float>(start));
    }
  }

  EchoModel model_;
  FakeRecorder recorder_;
  CachePlan plan_;
  std::unique_ptr<ArenaStorage> storage_;
  std::unique_ptr<Cache> cache_;
  Execution execution_;
  StepBatch batch_;
  DecodeGraphs graphs_;
  std::vector<SequenceLease> leases_;
  std::vector<int32_t> tokens_;
  int64_t num_drafts_ = 0;
  std::vector<std::string> told_;  // of refusals
};

TEST_F(DecodeGraphsTest, EachNumberOfRowsIsRecordedTheSecondTimeAndServesWhatFits) {
  ExpectLogits(Forward(3, 255), 3, 255);
  EXPECT_EQ(recorder_.recorded, 0);
  EXPECT_EQ(model_.num_rows, (std::vector<int64_t>{4}));  // computed as it will be recorded
  ExpectLogits(Forward(3, 11), 3, 11);
  ExpectLogits(Forward(4, 254), 4, 254);
  EXPECT_EQ(recorder_.recorded, 1);
  ExpectLogits(Forward(5, 10), 5, 10);  // of eight rows
  EXPECT_EQ(recorder_.recorded, 1);
  ExpectLogits(Forward(8, 10), 8, 10);
  ExpectLogits(Forward(4, 12), 4, 12);
  EXPECT_EQ(recorder_.recorded, 2);
  EXPECT_EQ(graphs_.num_launches(), 4);
}

TEST_F(DecodeGraphsTest, AGraphIsForRowsOfAnyLength) {
  for (int64_t start : {10, 11, 12, 300, 8191, 5}) ExpectLogits(Forward(2, start), 2, start);
  EXPECT_EQ(recorder_.recorded, 1);
  EXPECT_EQ(graphs_.num_launches(), 5);
  EXPECT_FALSE(Forward(2, kSequenceTokens).defined());
}

TEST_F(DecodeGraphsTest, TooManyKeysRunWithoutGraphs) {
  // 17 splits of each of 256 rows are more than 4096.
  EXPECT_FALSE(Forward(256, 16 * ops::kSplitTokens).defined());
  EXPECT_EQ(graphs_.num_refusals(), 0);
  ExpectLogits(Forward(256, 16 * ops::kSplitTokens - 1), 256, 16 * ops::kSplitTokens - 1);
}

TEST_F(DecodeGraphsTest, OtherStepsAreNotRecorded) {
  num_drafts_ = 1;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Forward(2, 10).defined());
  EXPECT_EQ(recorder_.recorded, 0);
}

TEST_F(DecodeGraphsTest, AModelThatAsksTheHostIsRefusedForGood) {
  model_.asks_the_host = true;
  EXPECT_EQ(graphs_.num_refusals(), 0);
  EXPECT_FALSE(Forward(2, 10).defined());
  EXPECT_NE(graphs_.refusal(), "");
  EXPECT_FALSE(Forward(2, 11).defined());
  EXPECT_EQ(told_, (std::vector<std::string>{graphs_.refusal()}));
  EXPECT_EQ(graphs_.num_refusals(), 1);
  model_.asks_the_host = false;
  EXPECT_FALSE(Forward(2, 12).defined());
  EXPECT_FALSE(Forward(2, 13).defined());
  EXPECT_EQ(recorder_.recorded, 0);
}

TEST_F(DecodeGraphsTest, ARecordingThatFailsIsToldAndRunsWithoutGraphs) {
  ExpectLogits(Forward(2, 10), 2, 10);
  recorder_.fails_with = 901;  // the capture was broken off
  EXPECT_FALSE(Forward(2, 11).defined());
  EXPECT_FALSE(Forward(2, 12).defined());
  EXPECT_EQ(told_, (std::vector<std::string>{"CUDA error"}));
}

// A step that ran in part has moved states on, so it must not run again without a graph.
TEST_F(DecodeGraphsTest, AStepWithoutMemoryFails) {
  model_.has_memory = false;
  EXPECT_THROW(Forward(2, 10), c10::OutOfMemoryError);
  EXPECT_EQ(graphs_.num_refusals(), 0);
  model_.has_memory = true;
  ExpectLogits(Forward(2, 10), 2, 10);
  ExpectLogits(Forward(2, 11), 2, 11);
  EXPECT_EQ(recorder_.recorded, 1);
}

TEST_F(DecodeGraphsTest, ALostDeviceIsNoRefusal) {
  ExpectLogits(Forward(2, 10), 2, 10);
  recorder_.fails_with = 700;  // illegal address
  EXPECT_THROW(Forward(2, 11), c10::AcceleratorError);
  EXPECT_TRUE(told_.empty());
}

TEST_F(DecodeGraphsTest, TablesThatMoveAreRecordedAnew) {
  ExpectLogits(Forward(2, 511), 2, 511);
  ExpectLogits(Forward(2, 510), 2, 510);
  EXPECT_EQ(recorder_.recorded, 1);
  // The tables of 256 sequences of 512 tokens do not fit where those of two lay.
  ExpectLogits(Forward(256, 511), 256, 511);
  ExpectLogits(Forward(256, 510), 256, 510);
  EXPECT_EQ(recorder_.recorded, 2);
  ExpectLogits(Forward(2, 12), 2, 12);
  EXPECT_EQ(recorder_.recorded, 3);
}

TEST_F(DecodeGraphsTest, ReservedTablesDoNotMove) {
  batch_.Reserve({.rows = 256, .sequence_tokens = 512});
  ExpectLogits(Forward(2, 511), 2, 511);
  ExpectLogits(Forward(2, 510), 2, 510);
  const void* const address = batch_.copy_address();
  ExpectLogits(Forward(256, 511), 256, 511);  // as in the test above
  ExpectLogits(Forward(256, 510), 256, 510);
  ExpectLogits(Forward(2, 12), 2, 12);
  EXPECT_EQ(batch_.copy_address(), address);
  EXPECT_EQ(recorder_.recorded, 2);
}

}  // namespace
}  // namespace berth
