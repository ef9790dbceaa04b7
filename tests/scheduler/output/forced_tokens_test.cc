// Tokens that a constraint leaves no choice of: they are not computed one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/policy/policy.h"
#include "tests/scheduler/output/constrained_requests.h"
#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

TEST(ForcedTokens, EnterTheCacheWithTheNextChunk) {
  for (const auto& layers : AllLayers()) {
    SchedulerHarness h(layers, 64, kOptions);
    const RequestKey key =
        h.Add(Choosing(h.MakeRequest(5, 30), {{1, 2, 3, 4, 5, 6, 50, 7, 8}, {1, 2, 3, 4, 5, 6, 60, 7, 8, 9}}));
    h.Step();
    EXPECT_EQ(h.shapes, (std::vector<RowShape>{{0, 5, true}}));
    EXPECT_EQ(h.records[key].tokens, Range(1, 6)) << "the first one is chosen, five follow";
    h.Step();
    EXPECT_EQ(h.shapes, (std::vector<RowShape>{{5, 6, true}}));
    EXPECT_EQ(h.records[key].finish, FinishReason::kStop) << "the choice in the middle was the only one";
    h.ExpectAllEnded();
  }
}

TEST(ForcedTokens, AnOutputThatIsForcedToItsEndTakesOneStep) {
  SchedulerHarness h({StaticLayer()}, 64, kOptions);
  const RequestKey key = h.Add(Choosing(h.MakeRequest(2, 40), {Range(0, 30)}));
  h.Step();
  EXPECT_TRUE(h.scheduler->empty()) << "nothing needs the cache of its last tokens";
  EXPECT_EQ(h.records[key].tokens, Range(0, 30));
  EXPECT_EQ(h.records[key].finish, FinishReason::kStop);
  EXPECT_EQ(h.records[key].stop_token, -1);
  EXPECT_EQ(h.scheduler->counts().forced_tokens, 29);
  h.ExpectAllEnded();
}

// Limits what each sequence gets, except the first.
struct Throttle : FcfsPolicy {
  int64_t TokenLimit(const Sequence& /*sequence*/, TokenUse /*use*/, int64_t left) override {
    return std::min(left, limit);
  }
  int64_t limit = 2;
};

TEST(ForcedTokens, ALongForcedRunGetsATokenOfEachStepBesideAnOlderPrompt) {
  Throttle policy;
  Scheduler::Options options = kOptions;
  options.max_running = 4;
  options.max_step_tokens = 10;
  options.prefill_chunk_tokens = 9;
  options.policy = &policy;
  SchedulerHarness h({StaticLayer()}, 64, options);
  h.Add(1, 60);
  const RequestKey prompt = h.Add(90, 2);
  std::vector<int32_t> one = Range(0, 20);
  std::vector<int32_t> other = one;
  one.push_back(50);
  other.push_back(51);
  const RequestKey late = h.Add(Choosing(h.MakeRequest(1, 40), {one, other}));
  h.Step();
  EXPECT_EQ(h.records[late].tokens.size(), 20u);
  policy.limit = 100;
  while (h.records[prompt].tokens.empty() && h.records[late].num_ends == 0) {
    h.Step();
    // Without a token of its own the late one would wait until the prompt is done.
    ASSERT_EQ(h.shapes.size(), 3u);
    EXPECT_EQ(h.shapes[1].num_tokens, 8);
    EXPECT_EQ(h.shapes[2].num_tokens, 1);
  }
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(ForcedTokens, EndAtTheLengthAStopTokenAndCompletion) {
  SchedulerHarness h({StaticLayer(), RecurrentLayer()}, 64, kOptions);
  const RequestKey cut = h.Add(Choosing(h.MakeRequest(3, 4), {Range(0, 9)}));
  const RequestKey exact = h.Add(Choosing(h.MakeRequest(3, 9), {Range(0, 9)}));
  Request stopped = Choosing(h.MakeRequest(3, 20), {Range(0, 9)});
  stopped.stop_token_ids.push_back(5);
  const RequestKey stop = h.Add(stopped);
  h.Step();
  EXPECT_TRUE(h.scheduler->empty()) << "one step each";
  EXPECT_EQ(h.records[cut].tokens, Range(0, 4));
  EXPECT_EQ(h.records[cut].finish, FinishReason::kLength);
  EXPECT_EQ(h.records[exact].finish, FinishReason::kStop) << "complete, though max_tokens is reached too";
  EXPECT_EQ(h.records[stop].tokens, Range(0, 6));
  EXPECT_EQ(h.records[stop].stop_token, 5);
  h.ExpectAllEnded();
}

// Runs a request that is forced to nine tokens.
void ExpectAStepForEachToken(const Request& request, SchedulerHarness* h) {
  h->Add(request);
  h->RunToEnd();
  EXPECT_EQ(h->scheduler->counts().forced_tokens, 0);
  EXPECT_EQ(h->num_steps, 9);
}

TEST(ForcedTokens, LogprobsBeforeTheMaskTakeAStepForEachToken) {
  SchedulerHarness h({StaticLayer()}, 64, kOptions);
  Request request = Choosing(h.MakeRequest(3, 20), {Range(0, 9)});
  request.sampling.num_logprobs = 2;
  ExpectAStepForEachToken(request, &h);
  request.key = 70;
  request.sampling.logprobs_after_mask = true;
  h.scheduler->Add(request);
  h.scheduler->Plan(h.clock.Now());
  StepResult result;
  result.rows.resize(1);
  result.rows[0].token = 0;
  std::vector<TokenEvent> events;
  h.scheduler->Commit(result, h.clock.Now(), &events);
  ASSERT_EQ(events.size(), 9u);
  for (int32_t i = 1; i < 9; ++i) {
    EXPECT_EQ(events[i].token, i);
    EXPECT_EQ(events[i].logprob, 0);
    ASSERT_EQ(events[i].top.size(), 1u);
    EXPECT_EQ(events[i].top[0].token, i);
  }
  EXPECT_EQ(h.scheduler->counts().forced_tokens, 8);
}

// A rule may ban what the constraint forces, so each token is checked in a step of its own.
TEST(ForcedTokens, TokenRulesTakeAStepForEachToken) {
  SchedulerHarness h({StaticLayer()}, 64, kOptions);
  Request request = Choosing(h.MakeRequest(3, 20), {Range(0, 9)});
  request.rules.no_repeat_ngram_size = 3;
  ExpectAStepForEachToken(request, &h);
}

}  // namespace
}  // namespace berth
