// What steps run before a server serves, with a runner that only writes them down.
#include "models/warm_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "models/graph_shape.h"
#include "tests/testing/failing_storage.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RecordingRunner final : public ModelRunner {
 public:
  const ModelInfo& info() const override { return info_; }
  absl::Status Run(const StepPlan& plan, StepResult* result) override {
    steps.emplace_back();
    int64_t num_tokens = 0;
    for (const StepRow& row : plan.rows) {
      steps.back().push_back(row.num_tokens());
      num_tokens += row.num_tokens() + static_cast<int64_t>(row.encoder_tokens.size());
      num_drafts += row.num_drafts();
      EXPECT_GE(row.lease->num_tokens(), row.start + row.num_tokens());
      if (row.start == 0) {
        EXPECT_EQ(row.lease->num_cross_tokens(), static_cast<int64_t>(row.encoder_tokens.size()));
      }
      EXPECT_EQ(static_cast<int64_t>(row.history.size()), row.start + static_cast<int64_t>(row.tokens.size()));
      EXPECT_TRUE(row.sample && row.sampling != nullptr);
      EXPECT_TRUE(row.drafts.empty() || row.sampling->temperature == 0);
    }
    EXPECT_EQ(plan.num_tokens, num_tokens);
    result->rows.resize(plan.rows.size());
    const bool decodes = plan.num_decode_rows == static_cast<int64_t>(plan.rows.size());
    if (decodes && has_graphs && steps.size() > 3 && steps[steps.size() - 2].size() == plan.rows.size()) ++launches;
    return on_run(plan);
  }
  int64_t num_graph_launches() const override { return launches; }

  std::vector<std::vector<int64_t>> steps;  // the tokens of their rows
  int64_t num_drafts = 0;                   // of all steps
  bool has_graphs = false;
  int64_t launches = 0;
  std::function<absl::Status(const StepPlan&)> on_run = [](const StepPlan&) { return absl::OkStatus(); };

 private:
  ModelInfo info_;
};

constexpr WarmUpOptions kOptions = {
    .max_running = 3, .max_step_tokens = 20, .prefill_chunk_tokens = 8, .max_sequence_tokens = 600};

TEST(WarmUpTest, RunsTheLargestSteps) {
  TinyCache tiny({StaticLayer(), RecurrentLayer()}, /*size=*/400);
  RecordingRunner runner;
  const auto counts = WarmUp(tiny.cache->plan(), tiny.storage.get(), &runner, kOptions);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_THAT(runner.steps, ElementsAre(ElementsAre(8, 8, 4), ElementsAre(1, 1, 1)));
  EXPECT_EQ(counts->prefill_tokens, 20);
  EXPECT_EQ(counts->decode_rows, 3);
  EXPECT_EQ(counts->graphs, 0);
}

TEST(WarmUpTest, TakesWhatTheArenaHolds) {
  TinyCache tiny({StaticLayer()}, /*size=*/2);
  RecordingRunner runner;
  const auto counts = WarmUp(tiny.cache->plan(), tiny.storage.get(), &runner, kOptions);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->prefill_tokens, 16);
}

TEST(WarmUpTest, AnEncoderReadsAsMuchAsASequenceHas) {
  TinyCache tiny({CrossLayer()}, /*size=*/400);
  for (const auto& [sequence_tokens, encoder_tokens] : {std::pair<int64_t, int64_t>(600, 19), {11, 11}}) {
    RecordingRunner runner;
    WarmUpOptions options = kOptions;
    options.max_sequence_tokens = sequence_tokens;
    const auto counts = WarmUp(tiny.cache->plan(), tiny.storage.get(), &runner, options);
    ASSERT_TRUE(counts.ok()) << counts.status();
    EXPECT_EQ(counts->prefill_tokens, 1 + encoder_tokens);
    EXPECT_THAT(runner.steps, ElementsAre(ElementsAre(1), ElementsAre(1, 1, 1)));
  }
}

TEST(WarmUpTest, RunsAStepWithTheMostDrafts) {
  for (const LayerCacheSpec& layer : {StaticLayer(), CrossLayer()}) {
    TinyCache tiny({layer}, /*size=*/400);
    RecordingRunner runner;
    WarmUpOptions options = kOptions;
    options.max_drafts = 7;
    const auto counts = WarmUp(tiny.cache->plan(), tiny.storage.get(), &runner, options);
    ASSERT_TRUE(counts.ok()) << counts.status();
    EXPECT_THAT(runner.steps.back(), ElementsAre(8, 8, 4));  // max_step_tokens
    EXPECT_EQ(counts->draft_tokens, 17);
    EXPECT_EQ(runner.num_drafts, 17);
  }
}

TEST(WarmUpTest, AStepHasItsMostDraftsWhateverItsTokens) {
  TinyCache tiny({StaticLayer()}, /*size=*/4000);
  RecordingRunner runner;
  const WarmUpOptions options = {.max_running = 40,
                                 .max_step_tokens = 4000,
                                 .prefill_chunk_tokens = 8,
                                 .max_sequence_tokens = 600,
                                 .max_drafts = 16};
  const auto counts = WarmUp(tiny.cache->plan(), tiny.storage.get(), &runner, options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->draft_tokens, kMaxStepDrafts);
}

TEST(WarmUpTest, RunsEachGraphsStepTwiceLargestFirst) {
  TinyCache tiny({StaticLayer()}, /*size=*/4000);
  RecordingRunner runner;
  runner.has_graphs = true;
  WarmUpOptions options = kOptions;
  options.graphs = true;
  const auto counts = WarmUp(tiny.cache->plan(), tiny.storage.get(), &runner, options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->graphs, 3);  // of 4, 2 and 1 rows
  ASSERT_EQ(runner.steps.size(), 2u + 2 * 3);
  for (size_t i = 2; i < runner.steps.size(); ++i) {
    EXPECT_EQ(runner.steps[i].size(), 3 - (i - 2) / 2);
    EXPECT_THAT(runner.steps[i], Each(1));
  }
}

TEST(WarmUpTest, OnlyGraphsThatTheArenaHasRoomForCount) {
  TinyCache tiny({StaticLayer()}, /*size=*/2);
  RecordingRunner runner;
  runner.has_graphs = true;
  WarmUpOptions options = kOptions;
  options.max_running = options.max_step_tokens = 40;
  options.graphs = true;
  const auto counts = WarmUp(tiny.cache->plan(), tiny.storage.get(), &runner, options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  ASSERT_LT(counts->decode_rows, 40);
  const std::vector<int64_t> sizes = GraphRowsUpTo(40);
  EXPECT_EQ(counts->graphs,
            std::count_if(sizes.begin(), sizes.end(), [&](int64_t rows) { return rows <= counts->decode_rows; }));
}

TEST(WarmUpTest, WithoutGraphsItDoesNotTryEach) {
  TinyCache tiny({StaticLayer()}, /*size=*/4000);
  RecordingRunner runner;
  WarmUpOptions options = kOptions;
  options.graphs = true;
  ASSERT_TRUE(WarmUp(tiny.cache->plan(), tiny.storage.get(), &runner, options).ok());
  EXPECT_EQ(runner.steps.size(), 4u);
}

TEST(WarmUpTest, SaysWhatDoesNotFit) {
  TinyCache tiny({StaticLayer()}, /*size=*/400);
  RecordingRunner runner;
  runner.on_run = [](const StepPlan&) { return absl::ResourceExhaustedError("CUDA out of memory"); };
  const auto counts = WarmUp(tiny.cache->plan(), tiny.storage.get(), &runner, kOptions);
  EXPECT_EQ(counts.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(counts.status().message(),
            "before serving, a prefill step of 3 rows and 20 tokens failed: CUDA out of memory; where memory is short, "
            "lower --arena, --max_step_tokens, --max_running or --max_sequence_tokens");
}

TEST(WarmUpTest, AnErrorOfTheArenaEndsIt) {
  TinyCache tiny({StaticLayer()}, /*size=*/400);
  FailingStorage storage(tiny.storage.get());
  RecordingRunner runner;
  runner.on_run = [&](const StepPlan&) {
    storage.Fail(absl::InternalError("a copy failed"));
    return absl::OkStatus();
  };
  const auto counts = WarmUp(tiny.cache->plan(), &storage, &runner, kOptions);
  EXPECT_THAT(std::string(counts.status().message()), HasSubstr("a copy failed"));
  EXPECT_EQ(runner.steps.size(), 1u);
}

}  // namespace
}  // namespace berth
