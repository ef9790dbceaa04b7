// Several outputs of one request: samples and beams, forked off one prefill.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "scheduler/output/output_group.h"
#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

const Scheduler::Options kOptions = {
    .max_running = 8, .max_step_tokens = 32, .prefill_chunk_tokens = 8, .max_sequence_tokens = 1000};

std::vector<std::vector<LayerCacheSpec>> AllLayers() {
  return {{StaticLayer()},
          {RecurrentLayer()},
          {SlidingLayer(6, 5), StaticLayer()},
          {ChunkedLayer(8), StaticLayer()},
          HybridLayers(),
          {CrossLayer(), CrossLayer()},
          {CrossLayer(), RecurrentLayer()}};
}

Request Beams(Request request, int64_t num_beams, EarlyStopping early_stopping = EarlyStopping::kHeuristic) {
  request.beams = {.num_beams = num_beams, .early_stopping = early_stopping};
  request.num_outputs = num_beams;
  return request;
}

TEST(Outputs, EachIsThatOfARequestWithItsSeed) {
  for (const auto& layers : AllLayers()) {
    for (int64_t prompt : {1, 2, 8, 9, 21}) {
      SchedulerHarness h(layers, 64, kOptions);
      Request request = h.MakeRequest(prompt, 20);
      request.sampling.seed = 100;
      Request alone = request;
      request.num_outputs = 3;
      const RequestKey key = h.Add(request);
      h.RunToEnd();
      for (int32_t i = 0; i < 3; ++i) {
        alone.key = 50 + i;
        alone.sampling.seed = 100 + i;
        h.Add(alone);
        h.RunToEnd();
        const std::vector<int32_t>& tokens = i == 0 ? h.records[key].tokens : h.records[key].others[i].tokens;
        EXPECT_EQ(h.records[alone.key].tokens, tokens);
      }
      EXPECT_NE(h.records[key].tokens, h.records[key].others[1].tokens);
      h.ExpectAllEnded();
    }
  }
}

TEST(Outputs, AForkOnTheOtherSideOfTheRopesSwitchComputesThePromptAgain) {
  for (const auto& [first_length, length, shared] :
       std::vector<std::array<int64_t, 3>>{{7, 6, 4}, {7, 8, 4}, {7, 9, 0}, {9, 8, 0}, {9, 12, 4}}) {
    TinyCache tiny({StaticLayer()}, 64);
    Request request;
    request.prompt = {1, 2, 3, 4, 5};
    request.max_tokens = 20;
    request.num_outputs = 2;
    Sequence first(std::move(request));
    OutputGroup::Create(&first);
    OutputGroup& group = *first.group;
    const std::vector<std::unique_ptr<Sequence>> others = group.MakeOthers();
    first.tokens.resize(first_length, 6);
    others[0]->tokens.resize(length, 7);
    first.lease = tiny.cache->NewLease();
    ASSERT_TRUE(first.lease.Grow(4).ok());
    ASSERT_TRUE(group.ready_to_fork());
    group.Fork(/*rope_switch_length=*/8);
    EXPECT_EQ(others[0]->num_computed(), shared) << first_length << " and " << length;
  }
}

TEST(Outputs, ThePromptIsComputedOnce) {
  SchedulerHarness h(HybridLayers(), 64, kOptions);
  Request request = h.MakeRequest(21, 5);
  request.num_outputs = 4;
  h.Add(request);
  for (const std::vector<RowShape>& shapes :
       {std::vector<RowShape>{{0, 8, false}}, {{8, 8, false}}, {{16, 4, false}}, {4, RowShape{20, 1, true}}}) {
    h.Step();
    EXPECT_EQ(h.shapes, shapes);
  }
  EXPECT_EQ(h.scheduler->counts().num_running, 4);
  EXPECT_EQ(h.scheduler->counts().prompt_tokens, 21);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler->counts().generation_tokens, 20);
  h.ExpectAllEnded();
}

TEST(Outputs, TheEncoderRunsOnce) {
  SchedulerHarness h({CrossLayer()}, 64, kOptions);
  int64_t num_encoder_rows = 0;
  h.runner.on_run = [&](const StepPlan& plan) {
    for (const StepRow& row : plan.rows) num_encoder_rows += row.encoder_tokens.empty() ? 0 : 1;
    return absl::OkStatus();
  };
  Request request = h.MakeRequest(1, 5);
  request.num_outputs = 3;
  h.Add(request);
  h.Add(Beams(h.MakeRequest(1, 5), 3));
  h.RunToEnd();
  EXPECT_EQ(num_encoder_rows, 2);
  h.ExpectAllEnded();
}

TEST(Outputs, OneThatStopsLeavesTheOthers) {
  SchedulerHarness h(HybridLayers(), 64, kOptions);
  Request request = h.MakeRequest(5, 30);
  request.num_outputs = 4;
  const std::vector<FakeModelRunner::Answer> answers = FakeModelRunner::AnswersTo(request);
  request.stop_token_ids = {answers[2].tokens[3]};
  const RequestKey key = h.Add(request);
  h.RunToEnd();
  EXPECT_EQ(h.records[key].others[2].finish, FinishReason::kStop);
  EXPECT_LE(h.records[key].others[2].tokens.size(), 4u);
  h.ExpectAllEnded();
}

TEST(Outputs, AClientMayHaveEnoughOfOne) {
  SchedulerHarness h(HybridLayers(), 64, kOptions);
  Request request = h.MakeRequest(5, 30);
  request.num_outputs = 3;
  const RequestKey key = h.Add(request);
  h.scheduler->Cancel(key, FinishReason::kCancelled, 0);  // before it is apart from the others
  for (int i = 0; i < 2; ++i) h.Step();
  EXPECT_EQ(h.scheduler->counts().num_running, 3);
  h.Step();
  EXPECT_EQ(h.scheduler->counts().num_running, 2);
  EXPECT_EQ(h.records[key].finish, FinishReason::kCancelled);
  EXPECT_EQ(h.records[key].num_ends, 0);
  h.scheduler->Cancel(key, FinishReason::kCancelled, 1);
  h.scheduler->Cancel(key, FinishReason::kCancelled, 2);
  h.Step();
  EXPECT_EQ(h.records[key].num_ends, 1);
  EXPECT_TRUE(h.scheduler->empty());
  h.ExpectAllEnded();
}

TEST(Outputs, ARequestIsAdmittedWhole) {
  SchedulerHarness h(HybridLayers(), 64, kOptions);
  for (int i = 0; i < 6; ++i) h.Add(3, 6);
  Request request = h.MakeRequest(5, 6);
  request.num_outputs = 3;
  const RequestKey key = h.Add(request);
  h.Add(3, 6);  // would have room, but does not overtake
  for (int i = 0; i < 3; ++i) h.Step();
  EXPECT_EQ(h.scheduler->counts().num_running, 6);
  EXPECT_EQ(h.scheduler->counts().num_new, 2);
  while (h.records[key].tokens.empty()) h.Step();
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Outputs, ManyMoreThanMayRunOrFitAreRefused) {
  SchedulerHarness h({StaticLayer()}, 8, kOptions);  // 64 tokens
  Request request = h.MakeRequest(33, 8);
  request.num_outputs = 9;
  EXPECT_EQ(h.scheduler->CheckRequest(request).message(), "num_outputs is 9, over max_running of 8 sequences at once");
  // Eight blocks are shared; each has three of its own.
  request.num_outputs = 3;
  EXPECT_EQ(
      h.scheduler->CheckRequest(request).message(),
      "num_outputs is 3: that many sequences of 41 tokens (prompt and max_tokens) do not fit the arena of 2084 bytes "
      "together");
  request.num_outputs = 2;
  EXPECT_TRUE(h.scheduler->CheckRequest(request).ok());
  request.beams.num_beams = 3;
  EXPECT_EQ(h.scheduler->CheckRequest(request).code(), absl::StatusCode::kInvalidArgument);
  request.beams.num_beams = 2;
  h.Add(request);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Outputs, BeamsAreThoseOfASearchWithoutACache) {
  for (const auto& layers : AllLayers()) {
    for (int64_t prompt : {1, 2, 8, 21}) {
      for (EarlyStopping early : {EarlyStopping::kHeuristic, EarlyStopping::kAtOnce, EarlyStopping::kNever}) {
        SchedulerHarness h(layers, 64, kOptions);
        Request request = Beams(h.MakeRequest(prompt, 20), 4, early);
        request.stop_token_ids = {9, 3, 50, 51, 52, 53};
        request.num_outputs = 2;
        const RequestKey key = h.Add(request);
        h.Add(4, 15);
        h.RunToEnd();
        EXPECT_EQ(h.records[key].others.size(), 1u);
        h.ExpectAllEnded();
      }
    }
  }
}

TEST(Outputs, BeamsWaitForEachOther) {
  // A step has room for two of the three beams' last prompt tokens.
  Scheduler::Options options = kOptions;
  options.max_running = 4;
  options.max_step_tokens = 4;
  options.prefill_chunk_tokens = 2;
  options.crop_every = 2;
  SchedulerHarness h(HybridLayers(), 64, options);
  h.Add(3, 40);
  Request request = Beams(h.MakeRequest(7, 12), 3);
  h.Add(request);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Outputs, ArePreemptedTogetherAndResumeWithTheSameTokens) {
  for (const bool beams : {false, true}) {
    SchedulerHarness h({StaticLayer(), RecurrentLayer()}, 16, kOptions);
    h.Add(80, 30);
    Request request = h.MakeRequest(9, 20);
    request.num_outputs = 3;
    if (beams) request = Beams(request, 3);
    const RequestKey key = h.Add(request);
    while (h.scheduler->counts().num_preemptions == 0 && !h.scheduler->empty()) h.Step();
    EXPECT_EQ(h.scheduler->counts().num_running, 1);
    EXPECT_EQ(h.scheduler->counts().num_waiting, 3);
    EXPECT_EQ(h.scheduler->counts().num_new, 0);
    h.RunToEnd();
    EXPECT_GE(h.records[key].times.num_preemptions, 1);
    EXPECT_EQ(h.scheduler->counts().prompt_tokens, 89);
    h.ExpectAllEnded();
  }
}

TEST(Outputs, EndTogetherByDeadlineCancelAndFailure) {
  for (const char* how : {"deadline", "cancel", "failure", "bad logits", "all"}) {
    for (const bool beams : {false, true}) {
      for (int steps = 0; steps < 8; ++steps) {
        SCOPED_TRACE(testing::Message() << how << (beams ? " of beams" : "") << " after " << steps);
        SchedulerHarness h(HybridLayers(), 64, kOptions);
        Request request = h.MakeRequest(20, 30);
        request.num_outputs = 3;
        if (beams) request = Beams(request, 4);
        request.deadline = h.clock.Now() + absl::Seconds(1);
        const RequestKey key = h.Add(request);
        for (int i = 0; i < steps; ++i) h.Step();
        FinishReason expected = FinishReason::kError;
        if (how == std::string("deadline")) {
          h.clock.Advance(absl::Seconds(1));
          expected = FinishReason::kDeadline;
        } else if (how == std::string("cancel")) {
          h.scheduler->Cancel(key, FinishReason::kCancelled);
          expected = FinishReason::kCancelled;
        } else if (how == std::string("failure")) {
          h.runner.on_run = [](const StepPlan&) { return absl::InternalError("broken"); };
        } else if (how == std::string("bad logits")) {
          h.runner.on_row = [](const StepRow&, RowResult* row) { row->token = RowResult::kBadLogits; };
          while (h.records[key].num_ends == 0) h.Step();
        } else {
          h.scheduler->EndAll(FinishReason::kCancelled, absl::OkStatus(), h.clock.Now(), &h.events);
          h.TakeEvents();
          expected = FinishReason::kCancelled;
        }
        h.Step();
        EXPECT_TRUE(h.scheduler->empty());
        const RequestRecord& record = h.records[key];
        EXPECT_EQ(record.num_ends, 1);
        FinishReason last = record.finish;
        for (const auto& [index, other] : record.others) {
          if (other.finish != FinishReason::kNone) last = other.finish;
        }
        EXPECT_EQ(last, expected);
      }
    }
  }
}

TEST(Outputs, ShareThePrefixThatTheCacheHolds) {
  Scheduler::Options options = kOptions;
  options.share_prefixes = true;
  SchedulerHarness h(HybridLayers(), 64, options);
  Request first = h.MakeRequest(24, 4);
  h.Add(first);
  h.RunToEnd();
  Request second = h.MakeRequest(40, 6);
  std::copy(first.prompt.begin(), first.prompt.end(), second.prompt.begin());
  Request beams = Beams(second, 3);
  beams.key = 77;
  second.num_outputs = 3;
  h.Add(second);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler->counts().prefix_hit_tokens, 24);
  h.Add(beams);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler->counts().prefix_hit_tokens, 48);
  h.ExpectAllEnded();
}

TEST(Outputs, HoldTheSharedPrefixOnce) {
  constexpr int64_t kBeams = 4;
  for (const auto& layers : {std::vector<LayerCacheSpec>{StaticLayer(), RecurrentLayer()}, HybridLayers()}) {
    SchedulerHarness h(layers, 64, kOptions);
    h.Add(Beams(h.MakeRequest(41, 16), kBeams));
    int64_t compared = 0;
    while (!h.scheduler->empty()) {
      h.Step();
      const Occupancy occupancy = h.GetOccupancy();
      if (occupancy.num_leases < kBeams) continue;
      const int64_t tokens = occupancy.pools[0].live_tokens / kBeams;
      const auto blocks = [](int64_t n) { return (n + kTinyBlockTokens - 1) / kTinyBlockTokens; };
      int64_t held = 0;
      int64_t limit = 0;
      for (const PoolOccupancy& pool : occupancy.pools) {
        held += pool.bytes(pool.live_units + pool.shared_units);
        // Ten blocks of the prompt are whole and shared; a window of 6 sees at most 3 blocks.
        const int64_t shared = pool.kind == CacheKind::kStatic ? 10 : 0;
        const int64_t tail = pool.kind == CacheKind::kStatic      ? blocks(tokens) - shared
                             : pool.kind == CacheKind::kRecurrent ? 1
                                                                  : 3;
        limit += pool.bytes(shared + kBeams * tail);
      }
      EXPECT_LE(held, limit) << tokens << " tokens";
      ++compared;
    }
    EXPECT_GE(compared, 15);
    h.ExpectAllEnded();
  }
}

}  // namespace
}  // namespace berth
