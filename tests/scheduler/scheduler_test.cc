// What a step is made of, how sequences end, and what is refused. The cache is large here; preemption_test.cc has the
// small ones.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

const Scheduler::Options kOptions = {
    .max_running = 4, .max_step_tokens = 16, .prefill_chunk_tokens = 8, .max_sequence_tokens = 100};
constexpr int64_t kPlenty = 400;  // pairs of blocks

using Shapes = std::vector<RowShape>;

TEST(SchedulerCreate, RefusesWhatMakesNoSense) {
  TinyCache tiny(HybridLayers(), kPlenty);
  const auto message = [&](Scheduler::Options options) {
    const absl::Status status = Scheduler::Create(tiny.cache.get(), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  Scheduler::Options options = kOptions;
  options.max_running = 0;
  EXPECT_EQ(message(options), "max_running is 0, outside [1, 2^31)");
  options = kOptions;
  options.max_step_tokens = 3;
  EXPECT_EQ(message(options),
            "max_step_tokens is 3, outside [4, 2^31): each of max_running sequences may decode a token in one step");
  options = kOptions;
  options.prefill_chunk_tokens = -1;
  EXPECT_EQ(message(options), "prefill_chunk_tokens is -1, outside [1, 2^31)");
  options = kOptions;
  options.max_sequence_tokens = 0;
  EXPECT_EQ(message(options), "max_sequence_tokens is 0, outside [2, 2^31)");
}

TEST(SchedulerCreate, RefusesAnArenaTooSmallForTwoTokens) {
  // Blocks of one token, and room for one.
  auto plan = BuildCachePlan({StaticLayer()}, /*block_tokens=*/1);
  ASSERT_TRUE(plan.ok());
  const auto storage = *CreateHostStorage(plan->groups[0].unit_bytes);
  const auto cache = *Cache::Create(*plan, storage.get(), {});
  const absl::Status status = Scheduler::Create(cache.get(), kOptions).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "the arena of 128 bytes holds a sequence of 1 tokens with prefill_chunk_tokens of 8; at least 2 are needed: "
      "one of a prompt, one of its output");
}

TEST(SchedulerCreate, ClipsTheLengthToTheArena) {
  TinyCache tiny({StaticLayer()}, 2);  // four blocks of four tokens
  EXPECT_EQ((*Scheduler::Create(tiny.cache.get(), kOptions))->max_sequence_tokens(), 16);
  TinyCache large({StaticLayer()}, kPlenty);
  EXPECT_EQ((*Scheduler::Create(large.cache.get(), kOptions))->max_sequence_tokens(), 100);
}

TEST(Scheduler, PrefillsInChunksAndSamplesOnlyAtTheEnd) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  const RequestKey key = h.Add(20, 3);
  h.Step();
  EXPECT_EQ(h.shapes, (Shapes{{0, 8, false}}));
  h.Step();
  EXPECT_EQ(h.shapes, (Shapes{{8, 8, false}}));
  EXPECT_TRUE(h.records[key].tokens.empty());
  h.Step();
  EXPECT_EQ(h.shapes, (Shapes{{16, 4, true}}));
  EXPECT_EQ(h.records[key].tokens.size(), 1u);
  h.Step();
  EXPECT_EQ(h.shapes, (Shapes{{20, 1, true}}));
  EXPECT_EQ(h.num_decode_rows, 1);
  h.RunToEnd();
  EXPECT_EQ(h.records[key].finish, FinishReason::kLength);
  h.ExpectAllEnded();
}

TEST(Scheduler, DecodesFirstThenPrefillsTheOldestWithinTheBudget) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  h.Add(4, 50);
  h.Add(4, 50);
  h.Step();
  h.Add(20, 5);
  h.Add(20, 5);
  h.Step();
  EXPECT_EQ(h.shapes, (Shapes{{4, 1, true}, {4, 1, true}, {0, 8, false}, {0, 6, false}}));
  EXPECT_EQ(h.num_decode_rows, 2);
  h.Step();
  EXPECT_EQ(h.shapes, (Shapes{{5, 1, true}, {5, 1, true}, {8, 8, false}, {6, 6, false}}));
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Scheduler, AnOlderPrefillComesAfterYoungerDecodes) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  h.Add(40, 5);
  h.Add(4, 5);
  h.Step();
  h.Step();
  EXPECT_EQ(h.shapes, (Shapes{{4, 1, true}, {8, 8, false}}));
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Scheduler, ABudgetOfOneTokenPerSequenceStillEnds) {
  SchedulerHarness h(HybridLayers(), kPlenty,
                     {.max_running = 4, .max_step_tokens = 4, .prefill_chunk_tokens = 4, .max_sequence_tokens = 100});
  for (int i = 0; i < 9; ++i) h.Add(1 + 3 * i, 10);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Scheduler, AdmitsInOrderOfArrivalUpToMaxRunning) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  for (int i = 0; i < 6; ++i) h.Add(2, i == 2 ? 2 : 10);
  EXPECT_EQ(h.scheduler->counts().num_new, 6);
  EXPECT_EQ(h.scheduler->counts().waiting_tokens, 12);
  h.Step();
  EXPECT_EQ(h.scheduler->counts().num_running, 4);
  EXPECT_EQ(h.scheduler->counts().num_waiting, 2);
  h.Step();  // the third ends
  h.Step();
  EXPECT_EQ(h.records[5].tokens.size(), 1u);
  EXPECT_EQ(h.records[6].tokens.size(), 0u);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Scheduler, NobodyOvertakesTheOneThatDoesNotFit) {
  // Sixteen blocks of four tokens: 64 tokens.
  SchedulerHarness h({StaticLayer()}, 8, kOptions);
  const RequestKey running = h.Add(30, 10);
  h.Step();
  const RequestKey large = h.Add(50, 5);
  const RequestKey small = h.Add(1, 3);
  while (h.records[running].num_ends == 0) {
    EXPECT_TRUE(h.records[small].tokens.empty());
    EXPECT_EQ(h.scheduler->counts().num_running, 1);
    h.Step();
  }
  h.Step();
  EXPECT_EQ(h.scheduler->counts().num_running, 2);
  h.RunToEnd();
  h.ExpectAllEnded();
  EXPECT_LE(h.records[large].times.first_scheduled, h.records[small].times.first_scheduled);
}

TEST(Scheduler, CountsWhatIsPromisedToThoseStillInPrefill) {
  // 64 tokens: the second's 30 fit beside the 8 that the first has computed, not beside the 50 that it will.
  SchedulerHarness h({StaticLayer()}, 8, kOptions);
  h.Add(50, 2);
  h.Add(30, 2);
  h.Step();
  EXPECT_EQ(h.scheduler->counts().num_running, 1);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler->counts().num_preemptions, 0);
  h.ExpectAllEnded();
}

TEST(Scheduler, StopsAtAStopToken) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  Request request = h.MakeRequest(5, 40);
  const std::vector<int32_t> tokens = FakeModelRunner::AnswerTo(request).tokens;
  request.stop_token_ids = {tokens[7], tokens[5]};  // unsorted, perhaps
  const RequestKey key = h.Add(request);
  h.RunToEnd();
  const RequestRecord& record = h.records[key];
  EXPECT_EQ(record.finish, FinishReason::kStop);
  EXPECT_EQ(record.tokens.size(), 6u);
  EXPECT_EQ(record.stop_token, tokens[5]);
  EXPECT_EQ(record.tokens.back(), tokens[5]);
  h.ExpectAllEnded();
}

TEST(Scheduler, BansStopTokensBelowMinTokens) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  Request request = h.MakeRequest(5, 40);
  for (int32_t token = 0; token < 100; token += 2) request.stop_token_ids.push_back(token);
  request.min_tokens = 10;
  const RequestKey key = h.Add(request);
  h.RunToEnd();
  const RequestRecord& record = h.records[key];
  EXPECT_EQ(record.finish, FinishReason::kStop);
  ASSERT_GE(record.tokens.size(), 11u);
  for (size_t i = 0; i + 1 < record.tokens.size(); ++i) EXPECT_EQ(record.tokens[i] % 2, 1) << i;
  h.ExpectAllEnded();
}

TEST(Scheduler, LogitsThatAreNoNumbersEndOnlyTheirRequest) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  h.runner.on_row = [](const StepRow& row, RowResult* out) {
    if (row.sampling->seed == 1 && row.start > 6) out->token = RowResult::kBadLogits;
  };
  const RequestKey bad = h.Add(5, 20);
  const RequestKey good = h.Add(5, 20);
  h.RunToEnd();
  EXPECT_EQ(h.records[bad].finish, FinishReason::kError);
  EXPECT_EQ(h.records[bad].error.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(h.records[bad].tokens.size(), 3u);
  EXPECT_EQ(h.records[good].finish, FinishReason::kLength);
  h.ExpectAllEnded();
}

TEST(Scheduler, CancelsInEveryState) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  const RequestKey decoding = h.Add(2, 50);
  const RequestKey prefilling = h.Add(60, 5);
  h.Add(2, 50);
  h.Add(2, 50);
  const RequestKey waiting = h.Add(2, 50);
  h.Step();
  const RequestKey fresh = h.Add(3, 3);
  const Occupancy before = h.GetOccupancy();
  EXPECT_EQ(before.num_leases, 4);
  h.scheduler->Cancel(decoding, FinishReason::kCancelled);
  h.scheduler->Cancel(prefilling, FinishReason::kStop);
  h.scheduler->Cancel(waiting, FinishReason::kCancelled);
  h.scheduler->Cancel(fresh, FinishReason::kCancelled);
  h.scheduler->Cancel(fresh, FinishReason::kStop);  // too late to change the reason
  h.scheduler->Cancel(4711, FinishReason::kCancelled);
  h.scheduler->EndDue(h.clock.Now(), &h.events);
  h.TakeEvents();
  EXPECT_EQ(h.GetOccupancy().num_leases, 2);
  EXPECT_EQ(h.records[decoding].finish, FinishReason::kCancelled);
  EXPECT_EQ(h.records[decoding].tokens.size(), 1u);
  EXPECT_EQ(h.records[prefilling].finish, FinishReason::kStop);
  EXPECT_EQ(h.records[prefilling].stop_token, -1);
  EXPECT_EQ(h.records[waiting].finish, FinishReason::kCancelled);
  EXPECT_EQ(h.records[waiting].times.first_scheduled, absl::InfinitePast());
  EXPECT_EQ(h.records[fresh].finish, FinishReason::kCancelled);
  EXPECT_EQ(h.scheduler->counts().num_new, 0);
  h.scheduler->Cancel(decoding, FinishReason::kCancelled);
  h.RunToEnd();
  EXPECT_EQ(h.records[3].finish, FinishReason::kLength);
  EXPECT_EQ(h.records[prefilling].num_ends, 1);
  h.requests.erase(prefilling);  // its kStop came from outside: there is no answer to compare
  h.ExpectAllEnded();
}

TEST(Scheduler, DeadlinesEndRunningAndWaitingOnes) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  std::vector<RequestKey> keys;
  for (int i = 0; i < 6; ++i) {
    Request request = h.MakeRequest(2, 90);
    request.deadline = h.clock.Now() + absl::Seconds(i < 5 ? 10 + (i + 1) % 5 : 100000);
    keys.push_back(h.Add(request));
  }
  h.Step();
  h.clock.Advance(absl::Seconds(9));
  h.Step();
  EXPECT_EQ(h.scheduler->counts().num_waiting, 2);
  h.clock.Advance(absl::Seconds(1));
  h.Step();
  EXPECT_EQ(h.records[keys[4]].num_ends, 1);
  EXPECT_EQ(h.records[keys[0]].num_ends, 0);
  h.clock.Advance(absl::Seconds(4));
  h.Step();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(h.records[keys[i]].finish, FinishReason::kDeadline) << i;
  EXPECT_EQ(h.records[keys[0]].tokens.size(), 3u);
  EXPECT_EQ(h.records[keys[4]].tokens.size(), 0u);
  EXPECT_EQ(h.scheduler->counts().num_running, 1);
  h.RunToEnd();
  EXPECT_EQ(h.records[keys[5]].finish, FinishReason::kLength);
  h.ExpectAllEnded();
}

TEST(Scheduler, FillsInTheTimes) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  const absl::Time start = h.clock.Now();
  const RequestKey key = h.Add(10, 2);
  h.clock.Advance(absl::Seconds(1));
  h.Step();
  h.clock.Advance(absl::Seconds(1));
  h.Step();
  h.clock.Advance(absl::Seconds(1));
  h.Step();
  const RequestTimes& times = h.records[key].times;
  EXPECT_EQ(times.arrival, start);
  EXPECT_EQ(times.first_scheduled, start + absl::Seconds(1));
  EXPECT_EQ(times.first_token, start + absl::Seconds(2));
  EXPECT_EQ(times.finished, start + absl::Seconds(3));
  EXPECT_EQ(times.num_preemptions, 0);
}

TEST(Scheduler, TheFirstTokenCarriesItsTimes) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  h.Add(2, 3);
  const StepPlan& plan = h.scheduler->Plan(h.clock.Now());
  ASSERT_TRUE(h.runner.Run(plan, &h.result).ok());
  h.clock.Advance(absl::Seconds(1));
  h.scheduler->Commit(h.result, h.clock.Now(), &h.events);
  ASSERT_EQ(h.events.size(), 1u);
  EXPECT_EQ(h.events[0].finish, FinishReason::kNone);
  EXPECT_EQ(h.events[0].times.first_token, h.clock.Now());
  EXPECT_EQ(h.events[0].times.finished, absl::InfinitePast());
  h.RunToEnd();
}

TEST(Scheduler, PassesLogprobsOn) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  h.runner.on_row = [](const StepRow&, RowResult* out) {
    out->logprob = -0.5f;
    out->top = {{out->token, -0.5f}, {3, -2.0f}};
  };
  h.Add(2, 3);
  const StepPlan& plan = h.scheduler->Plan(h.clock.Now());
  ASSERT_TRUE(h.runner.Run(plan, &h.result).ok());
  h.scheduler->Commit(h.result, h.clock.Now(), &h.events);
  ASSERT_EQ(h.events.size(), 1u);
  EXPECT_EQ(h.events[0].logprob, -0.5f);
  ASSERT_EQ(h.events[0].top.size(), 2u);
  EXPECT_EQ(h.events[0].top[1].token, 3);
  h.RunToEnd();
}

TEST(Scheduler, AFailedStepRestartsItsRowsAndNoOthers) {
  // The budget is too small for everyone to be in one step.
  SchedulerHarness h(HybridLayers(), kPlenty,
                     {.max_running = 4, .max_step_tokens = 4, .prefill_chunk_tokens = 4, .max_sequence_tokens = 100});
  const RequestKey first = h.Add(4, 20);
  h.Step();
  const RequestKey second = h.Add(20, 20);
  const RequestKey third = h.Add(5, 20);
  h.Step();
  h.runner.on_run = [](const StepPlan&) { return absl::InternalError("the device is unwell"); };
  h.Step();
  h.runner.on_run = nullptr;
  EXPECT_EQ(h.GetOccupancy().num_leases, 0);
  EXPECT_EQ(h.scheduler->counts().num_preemptions, 2);
  h.RunToEnd();
  for (RequestKey key : {first, second, third}) EXPECT_EQ(h.records[key].finish, FinishReason::kLength) << key;
  h.ExpectAllEnded();
}

TEST(Scheduler, EndAllLeavesNothing) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  for (int i = 0; i < 7; ++i) h.Add(10, 10);
  h.Step();
  h.scheduler->EndAll(FinishReason::kError, absl::UnavailableError("gone"), h.clock.Now(), &h.events);
  h.TakeEvents();
  EXPECT_TRUE(h.scheduler->empty());
  for (auto& [key, record] : h.records) EXPECT_EQ(record.error.message(), "gone");
  h.ExpectAllEnded();
}

TEST(Scheduler, CropsAndComputesAgainWithoutChangingTheOutput) {
  using Layers = std::vector<LayerCacheSpec>;
  for (const Layers& layers : {HybridLayers(), Layers{StaticLayer()}, Layers{StaticLayer(), SlidingLayer(6)},
                               Layers{ChunkedLayer(5)}, Layers{CrossLayer()}, Layers{CrossLayer(), RecurrentLayer()}}) {
    SchedulerHarness plain(layers, 400, kOptions);
    Scheduler::Options options = kOptions;
    options.crop_every = 3;
    SchedulerHarness cropping(layers, 400, options);
    for (SchedulerHarness* harness : {&plain, &cropping}) {
      for (int64_t prompt : {1, 5, 17}) harness->Add(prompt, 20);
      harness->RunToEnd();
    }
    for (const auto& [key, record] : plain.records) EXPECT_EQ(cropping.records[key].tokens, record.tokens);
    EXPECT_GT(cropping.num_steps, plain.num_steps);
  }
}

TEST(Scheduler, ComputesASequenceAnewThatGrowsPastTheRecomputeLength) {
  Scheduler::Options options = kOptions;
  options.rope_switch_length = 8;
  SchedulerHarness harness({StaticLayer()}, 400, options);
  harness.Add(6, 6);
  Shapes shapes;
  while (!harness.scheduler->empty()) {
    harness.Step();
    shapes.insert(shapes.end(), harness.shapes.begin(), harness.shapes.end());
  }
  // Tokens 7, 8 and 9 are sampled; the ninth makes the sequence too long for the cache that it has.
  const Shapes expected = {{0, 6, true}, {6, 1, true}, {7, 1, true}, {0, 8, false},
                           {8, 1, true}, {9, 1, true}, {10, 1, true}};
  EXPECT_EQ(shapes, expected);
}

TEST(Scheduler, CountsTokens) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  h.Add(20, 3);
  h.Add(5, 4);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler->counts().prompt_tokens, 25);
  EXPECT_EQ(h.scheduler->counts().generation_tokens, 7);
  EXPECT_EQ(h.scheduler->counts().num_preemptions, 0);
}

TEST(SchedulerDeathTest, AKeyInUseIsABug) {
  SchedulerHarness h(HybridLayers(), kPlenty, kOptions);
  Request request = h.MakeRequest(2, 2);
  h.Add(request);
  EXPECT_DEATH(h.scheduler->Add(request), "request key 1 is in use");
}

TEST(Scheduler, AnAlignedChunkIsWholeWhateverElseRuns) {
  Scheduler::Options options = kOptions;
  options.max_running = 4;
  options.max_step_tokens = 16;
  options.prefill_chunk_tokens = 8;
  options.share_prefixes = options.aligned_prefill_chunks = true;
  SchedulerHarness h({StaticLayer(), RecurrentLayer()}, 100, options);
  h.Add(3, 30);
  h.Step();
  for (int i = 0; i < 3; ++i) h.Add(20, 2);
  std::vector<RowShape> prefill;
  for (int i = 0; i < 8; ++i) {
    h.Step();
    for (const RowShape& row : h.shapes) {
      if (row.num_tokens > 1) prefill.push_back(row);
    }
  }
  ASSERT_EQ(prefill.size(), 9u) << "three chunks of each prompt";
  for (const RowShape& row : prefill) {
    EXPECT_EQ(row.start % 8, 0);
    EXPECT_EQ(row.num_tokens, std::min<int64_t>(8, 20 - row.start));
  }
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(SchedulerDrafts, AStepChecksALimitedNumber) {
  Scheduler::Options options = {
      .max_running = 64, .max_step_tokens = 4096, .prefill_chunk_tokens = 64, .max_sequence_tokens = 100};
  SchedulerHarness h({StaticLayer()}, /*arena_size=*/1000, options);
  // The prompts repeat themselves, and the first token continues them, so each sequence has drafts.
  constexpr int64_t kPeriod = 20;
  h.runner.on_row = [](const StepRow& row, RowResult* result) {
    result->token = static_cast<int32_t>(row.history.size() % kPeriod);
  };
  int64_t most = 0;
  h.runner.on_run = [&](const StepPlan& plan) {
    int64_t drafts = 0;
    for (const StepRow& row : plan.rows) drafts += row.num_drafts();
    most = std::max(most, drafts);
    return absl::OkStatus();
  };
  for (int i = 0; i < 64; ++i) {
    Request request = h.MakeRequest(60, 20);
    for (size_t t = 0; t < request.prompt.size(); ++t) request.prompt[t] = static_cast<int32_t>(t % kPeriod);
    request.sampling.temperature = 0;
    request.draft_tokens = kMaxDraftTokens;
    h.Add(std::move(request));
  }
  h.RunToEnd();
  EXPECT_EQ(most, kMaxStepDrafts);
}

}  // namespace
}  // namespace berth
