// The logprobs of prompts: once each and in order, whatever the chunks, and whatever happens to the sequence. The
// harness compares them with those of a prompt that is computed alone.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

Request WithLogprobs(SchedulerHarness* h, int64_t prompt_tokens, int64_t max_tokens, int32_t count) {
  Request request = h->MakeRequest(prompt_tokens, max_tokens);
  request.prompt_logprobs = count;
  return request;
}

TEST(PromptLogprobs, ComeWithTheFirstTokenWhateverTheChunks) {
  for (const int64_t chunk : {1, 7, 32}) {
    SchedulerHarness h(HybridLayers(), 256, SharingOptions(chunk));
    std::vector<RequestKey> keys;
    for (const int32_t prompt : {1, 2, 30, 61}) {
      keys.push_back(h.Add(WithLogprobs(&h, prompt, 3, prompt % 4)));
      h.Add(h.MakeRequest(20, 4));  // with other requests
    }
    h.RunToEnd();
    h.ExpectAllEnded();
    const auto num_entries = [&](int i) { return h.records[keys[i]].prompt_logprobs.entries.size(); };
    EXPECT_EQ(num_entries(0), 0u);
    EXPECT_EQ(num_entries(1), 1 * 3u);
    EXPECT_EQ(num_entries(3), 60 * 2u);
  }
}

TEST(PromptLogprobs, TakeNothingFromTheCacheButLeaveWhatTheyComputed) {
  SchedulerHarness h(HybridLayers(), 256, SharingOptions(32));
  const Request first = h.MakeRequest(50, 2);
  h.Add(first);
  h.RunToEnd();
  Request again = WithLogprobs(&h, 50, 2, 1);
  again.prompt = first.prompt;
  again.prompt.insert(again.prompt.end(), {3, 4, 5});
  const std::vector<int32_t> longer = again.prompt;
  const RequestKey key = h.Add(std::move(again));
  h.RunToEnd();
  EXPECT_EQ(h.records[key].num_cached, 0);
  EXPECT_EQ(h.records[key].prompt_logprobs.entries.size(), 52 * 2u);
  Request third = h.MakeRequest(1, 2);
  third.prompt = longer;
  third.prompt.push_back(9);
  const RequestKey last = h.Add(std::move(third));
  h.RunToEnd();
  EXPECT_EQ(h.records[last].num_cached, 53);
  h.ExpectAllEnded();
}

TEST(PromptLogprobs, AreComputedOnceThroughPreemptions) {
  for (const int64_t host_tier : {0, 100000}) {
    Scheduler::Options options = SharingOptions(5);
    options.swap.host_tier_bytes = host_tier;
    options.swap.copy_clock = absl::UnixEpoch;
    SchedulerHarness h({StaticLayer(), RecurrentLayer()}, /*arena_size=*/20, options);
    for (int i = 0; i < 8; ++i) h.Add(WithLogprobs(&h, 20 + i, 30, i % 3));
    h.RunToEnd();
    EXPECT_GT(h.scheduler->counts().num_preemptions, 0);
    h.ExpectAllEnded();
  }
}

TEST(PromptLogprobs, AreComputedOnceForSeveralOutputs) {
  SchedulerHarness h(HybridLayers(), 512, SharingOptions(8));
  Request request = WithLogprobs(&h, 30, 5, 2);
  request.num_outputs = 3;
  const RequestKey key = h.Add(std::move(request));
  h.RunToEnd();
  EXPECT_EQ(h.records[key].prompt_logprobs.entries.size(), 29 * 3u);
  for (const auto& [output, record] : h.records[key].others) EXPECT_TRUE(record.prompt_logprobs.entries.empty());
  h.ExpectAllEnded();
}

TEST(PromptLogprobs, SurviveAStepThatFails) {
  SchedulerHarness h({StaticLayer()}, 256, SharingOptions(8));
  int step = 0;
  h.runner.on_run = [&](const StepPlan&) { return ++step == 3 ? absl::InternalError("failed") : absl::OkStatus(); };
  h.Add(WithLogprobs(&h, 40, 3, 1));
  h.Add(WithLogprobs(&h, 41, 3, 1));
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(PromptLogprobs, OfADecoderAreThoseOfWhatItStartsFrom) {
  SchedulerHarness h({CrossLayer()}, 256, SharingOptions(8));
  h.Add(WithLogprobs(&h, 6, 3, 2));
  h.RunToEnd();
  h.ExpectAllEnded();
}

}  // namespace
}  // namespace berth
