// What is handed over to be saved, when, and that whoever resumes from it comes to the same end.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

Scheduler::Options Saving(SaveSink* sink, int64_t step_bytes = 1 << 20) {
  return {.max_running = 4,
          .max_step_tokens = 16,
          .prefill_chunk_tokens = 8,
          .max_sequence_tokens = 1000,
          .swap = {.copy_bytes_per_step = step_bytes},
          .save_sink = sink};
}

Request Saved(SchedulerHarness* h, int64_t prompt_tokens, int64_t max_tokens, int64_t autosave_tokens) {
  Request request = h->MakeRequest(prompt_tokens, max_tokens);
  request.saved = true;
  request.autosave_tokens = autosave_tokens;
  return request;
}

TEST(Saver, WhatIsSavedOnTheWayGoesOnElsewhereWithTheSameTokens) {
  for (const bool with_cross : {false, true}) {
    std::vector<LayerCacheSpec> layers = HybridLayers();
    if (with_cross) layers.push_back(CrossLayer());
    RecordingSaveSink sink;
    SchedulerHarness h(layers, 64, Saving(&sink));
    const Request request = Saved(&h, 11, 20, 3);
    h.Add(request);
    h.RunToEnd();
    h.ExpectAllEnded();
    ASSERT_EQ(sink.taken.size(), 7u) << "six on the way, one at the end";
    for (size_t i = 0; i < 6; ++i) {
      ASSERT_TRUE(sink.taken[i].progress.has_value());
      EXPECT_FALSE(sink.taken[i].last);
      Progress& progress = *sink.taken[i].progress;
      EXPECT_EQ(progress.tokens.size(), 3 * (i + 1));
      EXPECT_EQ(progress.snapshot.num_tokens, 11 + 3 * static_cast<int64_t>(i + 1) - 1);
      for (const bool with_snapshot : {true, false}) {
        SchedulerHarness other(layers, 64, Saving(nullptr));
        Request resumed = request;
        resumed.progress = std::make_shared<Progress>();
        resumed.progress->tokens = progress.tokens;
        if (with_snapshot) resumed.progress->snapshot = std::move(progress.snapshot);
        if (!with_snapshot) progress.snapshot = {};
        const int64_t computed = resumed.progress->snapshot.num_tokens;
        other.Add(resumed);
        other.Step();
        EXPECT_EQ(other.shapes[0].start, with_snapshot ? computed : 0);
        other.RunToEnd();
        other.ExpectAllEnded();
        EXPECT_EQ(other.scheduler->counts().generation_tokens, 20 - 3 * static_cast<int64_t>(i + 1));
      }
    }
    const SavedRequest& last = sink.taken.back();
    EXPECT_TRUE(last.last);
    EXPECT_EQ(last.progress->finish, FinishReason::kLength);
    EXPECT_EQ(last.progress->tokens, h.records[request.key].tokens);
    EXPECT_EQ(last.progress->snapshot.num_tokens, 30);
  }
}

// The output that it finds in the cache does not count as a cached prompt.
TEST(Saver, AResumedSessionHasNoMoreCachedTokensThanItsPrompt) {
  RecordingSaveSink sink;
  Scheduler::Options options = Saving(&sink);
  options.share_prefixes = true;
  SchedulerHarness h({StaticLayer()}, 64, options);
  const Request request = Saved(&h, 10, 40, 0);
  h.Add(request);
  h.RunToEnd();
  Request resumed = request;
  resumed.key = 70;
  resumed.progress = std::make_shared<Progress>();
  const std::vector<int32_t>& output = h.records[request.key].tokens;
  resumed.progress->tokens.assign(output.begin(), output.begin() + 30);
  h.Add(resumed);
  h.Step();
  EXPECT_GT(h.shapes.back().start, 20) << "the output is found, too";
  h.RunToEnd();
  EXPECT_EQ(h.scheduler->counts().prefix_queried_tokens, 20);
  EXPECT_EQ(h.scheduler->counts().prefix_hit_tokens, 10);
  EXPECT_EQ(h.scheduler->counts().prefix_replayed_tokens, 0);
  h.ExpectAllEnded();
}

TEST(Saver, WaitsForTheSinkAndTheBudgetAndLeavesOutWhatIsTooLarge) {
  RecordingSaveSink sink;
  SchedulerHarness h({StaticLayer()}, 64, Saving(&sink, /*step_bytes=*/128 * 4));  // 16 tokens
  const RequestKey first = h.Add(Saved(&h, 8, 20, 0));
  const RequestKey second = h.Add(Saved(&h, 8, 20, 0));
  h.Step();
  h.Step();
  sink.is_ready = false;
  for (RequestKey key : {first, second, RequestKey{99}}) h.scheduler->Save(key);
  h.Step();
  EXPECT_TRUE(sink.taken.empty());
  sink.is_ready = true;
  h.Step();
  ASSERT_EQ(sink.taken.size(), 1u) << "one step copies one of them";
  h.Step();
  ASSERT_EQ(sink.taken.size(), 2u);
  for (const SavedRequest& saved : sink.taken) EXPECT_FALSE(saved.progress->snapshot.empty());
  while (h.records[first].tokens.size() < 12) h.Step();
  h.scheduler->Save(first);
  h.Step();
  ASSERT_EQ(sink.taken.size(), 3u);
  EXPECT_TRUE(sink.taken.back().progress->snapshot.empty());
  EXPECT_EQ(sink.taken.back().progress->tokens.size(), 13u);
  h.RunToEnd();
  h.ExpectAllEnded();
}

// Each asks again before the next step, and a step copies one of them.
TEST(Saver, WhoAsksAgainGoesBehindThoseThatWait) {
  RecordingSaveSink sink;
  SchedulerHarness h({StaticLayer()}, 64, Saving(&sink, /*step_bytes=*/128 * 8));  // 32 tokens
  std::map<RequestKey, int> num_saves;
  for (int i = 0; i < 3; ++i) num_saves[h.Add(Saved(&h, 18, 13, /*autosave_tokens=*/1))] = 0;
  do h.Step();
  while (h.num_decode_rows < 3);
  sink.taken.clear();
  while (sink.taken.size() < 6) h.Step();
  for (const SavedRequest& saved : sink.taken) {
    ++num_saves[saved.key];
    EXPECT_FALSE(saved.last);
    EXPECT_FALSE(saved.progress->snapshot.empty());
  }
  for (const auto& [key, num] : num_saves) EXPECT_EQ(num, 2) << key;
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Saver, EveryEndIsHandedOverOnce) {
  RecordingSaveSink sink;
  SchedulerHarness h({StaticLayer()}, 64, Saving(&sink));
  const RequestKey cancelled = h.Add(Saved(&h, 4, 20, 0));
  h.Add(h.MakeRequest(4, 20));  // is not saved
  h.Step();
  h.Step();
  h.scheduler->Cancel(cancelled, FinishReason::kCancelled);
  h.Step();
  ASSERT_EQ(sink.taken.size(), 1u);
  EXPECT_TRUE(sink.taken[0].last);
  EXPECT_EQ(sink.taken[0].progress->finish, FinishReason::kNone) << "it may go on";
  EXPECT_EQ(sink.taken[0].progress->tokens, h.records[cancelled].tokens);
  h.Add(Saved(&h, 4, 20, 0));
  h.runner.on_run = [](const StepPlan&) { return absl::InternalError("broken"); };
  h.RunToEnd();
  ASSERT_EQ(sink.taken.size(), 2u);
  EXPECT_TRUE(sink.taken[1].last);
  EXPECT_FALSE(sink.taken[1].progress.has_value());
}

TEST(Saver, AWaitingOneIsSavedFromTheHostTier) {
  RecordingSaveSink sink;
  Scheduler::Options options = Saving(&sink);
  options.swap.host_tier_bytes = 1 << 20;
  options.swap.copy_clock = absl::UnixEpoch;
  SchedulerHarness h({StaticLayer()}, 8, options);
  h.Add(10, 40);
  const RequestKey young = h.Add(Saved(&h, 10, 40, 0));
  while (h.scheduler->counts().num_swap_outs == 0) h.Step();
  h.scheduler->Save(young);
  h.Step();
  ASSERT_EQ(sink.taken.size(), 1u);
  EXPECT_FALSE(sink.taken[0].progress->snapshot.empty());
  EXPECT_TRUE(CheckSnapshot(h.tiny.cache->plan(), sink.taken[0].progress->snapshot).ok());
  h.RunToEnd();
  h.ExpectAllEnded();
}

}  // namespace
}  // namespace berth
