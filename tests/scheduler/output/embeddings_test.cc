// Embeddings of prompts: the same bits whatever the chunks, the company, and what happens to the sequence. The harness
// compares them with those of a prompt that is computed alone.
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

Request Embedding(SchedulerHarness* h, int64_t prompt_tokens, Pooling pooling) {
  Request request = h->MakeRequest(prompt_tokens, /*max_tokens=*/0);
  request.pooling = pooling;
  return request;
}

constexpr Pooling kPoolings[] = {Pooling::kLast, Pooling::kMean};

TEST(Embeddings, AreTheSameWhateverTheChunks) {
  for (const int64_t chunk : {1, 7, 32}) {
    SchedulerHarness h(HybridLayers(), 256, SharingOptions(chunk));
    std::vector<RequestKey> keys;
    for (const Pooling pooling : kPoolings) {
      for (const int64_t prompt : {1, 2, 30, 61}) {
        keys.push_back(h.Add(Embedding(&h, prompt, pooling)));
        h.Add(h.MakeRequest(20, 4));  // with other requests
      }
    }
    h.RunToEnd();
    h.ExpectAllEnded();
    for (const RequestKey key : keys) {
      const RequestRecord& record = h.records[key];
      EXPECT_EQ(record.embedding.size(), static_cast<size_t>(FakeModelRunner::kHiddenSize));
      EXPECT_EQ(record.finish, FinishReason::kStop);
      EXPECT_TRUE(record.tokens.empty());
      EXPECT_GE(record.times.first_token, record.times.first_scheduled);
    }
    EXPECT_EQ(h.scheduler->counts().generation_tokens, 8 * 4);
  }
}

TEST(Embeddings, TheMeanComputesAllAndTheLastStateOnlyWhatTheCacheLacks) {
  SchedulerHarness h(HybridLayers(), 256, SharingOptions(32));
  const Request first = h.MakeRequest(50, 2);
  h.Add(first);
  h.RunToEnd();
  for (const Pooling pooling : kPoolings) {
    Request again = Embedding(&h, 50, pooling);
    again.prompt = first.prompt;
    again.prompt.insert(again.prompt.end(), {3, 4, 5});
    const RequestKey key = h.Add(std::move(again));
    h.RunToEnd();
    EXPECT_EQ(h.records[key].num_cached, pooling == Pooling::kMean ? 0 : 50);
  }
  Request third = h.MakeRequest(1, 2);
  third.prompt = first.prompt;
  third.prompt.insert(third.prompt.end(), {3, 4, 5, 9});
  const RequestKey last = h.Add(std::move(third));
  h.RunToEnd();
  EXPECT_EQ(h.records[last].num_cached, 53) << "what an embedding computes is for others too";
  h.ExpectAllEnded();
}

TEST(Embeddings, SurvivePreemptions) {
  for (const int64_t host_tier : {0, 100000}) {
    Scheduler::Options options = SharingOptions(5);
    options.swap.host_tier_bytes = host_tier;
    options.swap.copy_clock = absl::UnixEpoch;
    SchedulerHarness h({StaticLayer(), RecurrentLayer()}, /*arena_size=*/20, options);
    for (int i = 0; i < 6; ++i) {
      h.Add(20 + i, 30);
      h.Add(Embedding(&h, 60 + i, kPoolings[i % 2]));
    }
    h.RunToEnd();
    EXPECT_GT(h.scheduler->counts().num_preemptions, 0);
    h.ExpectAllEnded();
  }
}

TEST(Embeddings, SurviveAStepThatFails) {
  for (const Pooling pooling : kPoolings) {
    SchedulerHarness h({StaticLayer()}, 256, SharingOptions(8));
    int step = 0;
    h.runner.on_run = [&](const StepPlan&) { return ++step == 3 ? absl::InternalError("failed") : absl::OkStatus(); };
    h.Add(Embedding(&h, 40, pooling));
    h.Add(Embedding(&h, 41, pooling));
    h.RunToEnd();
    h.ExpectAllEnded();
    for (const auto& [key, record] : h.records) EXPECT_EQ(record.finish, FinishReason::kStop);
  }
}

TEST(Embeddings, OfTheLongestPromptFitTheArenaThatOneSequenceFills) {
  for (const Pooling pooling : kPoolings) {
    SchedulerHarness h({StaticLayer(), RecurrentLayer()}, /*arena_size=*/8, SharingOptions(16));
    const int64_t longest = h.scheduler->max_sequence_tokens();
    ASSERT_LT(longest, 1000) << "the arena sets no limit";
    h.Add(Embedding(&h, longest, pooling));
    h.RunToEnd();
    h.ExpectAllEnded();
  }
}

TEST(Embeddings, EndWithAnErrorWhereAStateIsNotFinite) {
  SchedulerHarness h({StaticLayer()}, 256, SharingOptions(8));
  RequestKey bad = 0;
  h.runner.on_pooled_row = [&](const StepRow& row, RowResult* result) {
    if (row.prompt_length == 31 && row.start == 8) result->pooled[1] = std::numeric_limits<double>::quiet_NaN();
  };
  bad = h.Add(Embedding(&h, 31, Pooling::kMean));
  const RequestKey good = h.Add(Embedding(&h, 30, Pooling::kMean));
  h.RunToEnd();
  h.ExpectAllEnded();
  EXPECT_EQ(h.records[bad].error, absl::InternalError("the model gave non-finite hidden states"));
  EXPECT_TRUE(h.records[bad].embedding.empty());
  EXPECT_EQ(h.records[good].finish, FinishReason::kStop);
}

TEST(Embeddings, CancelledOnesEndWithoutAny) {
  SchedulerHarness h({StaticLayer()}, 256, SharingOptions(8));
  const RequestKey key = h.Add(Embedding(&h, 40, Pooling::kMean));
  h.Step();
  h.scheduler->Cancel(key, FinishReason::kCancelled);
  h.RunToEnd();
  h.ExpectAllEnded();
  EXPECT_EQ(h.records[key].finish, FinishReason::kCancelled);
  EXPECT_TRUE(h.records[key].embedding.empty());
}

}  // namespace
}  // namespace berth
