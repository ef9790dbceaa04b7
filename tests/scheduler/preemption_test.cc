// What happens when the cache is full: which sequence is preempted, and that no sequence's tokens change.
#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

const Scheduler::Options kOptions = {
    .max_running = 4, .max_step_tokens = 16, .prefill_chunk_tokens = 8, .max_sequence_tokens = 1000};

// Steps until something was preempted.
void StepUntilPreemption(SchedulerHarness* h) {
  const int64_t before = h->scheduler->counts().num_preemptions;
  for (int i = 0; i < 1000 && h->scheduler->counts().num_preemptions == before; ++i) h->Step();
  ASSERT_GT(h->scheduler->counts().num_preemptions, before);
}

TEST(Preemption, TheYoungestIsPreemptedAndResumesWithTheSameTokens) {
  SchedulerHarness h({StaticLayer()}, 8, kOptions);  // 64 tokens
  for (int i = 0; i < 3; ++i) h.Add(10, 40);
  StepUntilPreemption(&h);
  EXPECT_EQ(h.scheduler->counts().num_running, 2);
  EXPECT_EQ(h.scheduler->counts().num_waiting, 1);
  EXPECT_EQ(h.scheduler->counts().num_new, 0);
  EXPECT_EQ(h.shapes.size(), 2u) << "the preempted one is still in the plan";
  h.RunToEnd();
  EXPECT_EQ(h.records[1].times.num_preemptions, 0);
  EXPECT_GE(h.records[3].times.num_preemptions, 1);
  EXPECT_EQ(h.scheduler->counts().prompt_tokens, 30) << "recomputed tokens were counted again";
  EXPECT_EQ(h.scheduler->counts().generation_tokens, 120);
  h.ExpectAllEnded();
}

TEST(Preemption, RecomputationCoversPromptAndOutputAndSamplesOnce) {
  SchedulerHarness h({StaticLayer()}, 8, kOptions);
  h.Add(10, 54);
  const RequestKey young = h.Add(10, 50);
  StepUntilPreemption(&h);
  const int64_t length = 10 + static_cast<int64_t>(h.records[young].tokens.size());
  EXPECT_GT(length, 16);
  EXPECT_EQ(h.scheduler->counts().waiting_tokens, length);
  while (h.records[1].num_ends == 0) h.Step();
  for (int64_t start = 0; start < length; start += 8) {
    h.Step();
    ASSERT_EQ(h.shapes.size(), 1u);
    EXPECT_EQ(h.shapes[0].start, start);
    EXPECT_EQ(h.shapes[0].num_tokens, std::min<int64_t>(8, length - start));
    EXPECT_EQ(h.shapes[0].sample, start + 8 >= length);
  }
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Preemption, AnOlderPrefillTakesFromAYoungerDecode) {
  // The young one's decode row would come first in the plan; its lease must be gone from it.
  SchedulerHarness h({StaticLayer()}, 8, kOptions);
  h.Add(24, 30);
  const RequestKey young = h.Add(2, 36);
  StepUntilPreemption(&h);
  EXPECT_EQ(h.shapes.size(), 1u);
  EXPECT_GT(h.records[young].tokens.size(), 1u);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Preemption, ThePreemptedOneComesBeforeThoseThatCameLater) {
  SchedulerHarness h({StaticLayer()}, 8, kOptions);
  for (int i = 0; i < 3; ++i) h.Add(10, 40);
  h.Step();
  const RequestKey late = h.Add(1, 1);
  StepUntilPreemption(&h);
  h.RunToEnd();
  EXPECT_LE(h.records[3].times.first_scheduled, h.records[late].times.first_scheduled);
  h.ExpectAllEnded();
}

TEST(Preemption, TheYoungestSitsTheStepOutRatherThanLoseItsCache) {
  // The first holds nine of the sixteen blocks. The second needs its eighth before the first needs its tenth.
  SchedulerHarness h({StaticLayer()}, 8, kOptions);
  h.Add(33, 12);
  h.Add(24, 12);
  bool sat_out = false;
  while (!h.scheduler->empty()) {
    h.Step();
    sat_out = sat_out || (h.scheduler->counts().num_running == 2 && h.shapes.size() == 1);
  }
  EXPECT_TRUE(sat_out);
  h.ExpectAllEnded();
}

// What an output has grown by in the pass that preempts it is not computed, so no later prompt may find it.
TEST(Preemption, AnOutputThatHasGrownIsNotShared) {
  struct Yielding : FcfsPolicy {
    const Sequence* PickToAdmit(const WaitingSequences& waiting) override {
      for (const std::unique_ptr<Sequence>& sequence : waiting) {
        if (sequence->request.key == 4) return sequence.get();
      }
      return FcfsPolicy::PickToAdmit(waiting);
    }
    size_t PickToPreempt(RunningSequences, const Sequence& beneficiary) override {
      if (beneficiary.request.key != 2) return kNobody;
      ++num_yields;
      return kItself;
    }
    int num_yields = 0;
  };
  int64_t num_yields = 0, num_cached = 0;
  const std::vector<std::vector<LayerCacheSpec>> models = {{StaticLayer()}, {StaticLayer(), RecurrentLayer()}};
  for (const std::vector<LayerCacheSpec>& layers : models) {
    for (int i = 0; i < 64; ++i) {
      const int64_t arena_size = 8 + i % 16, first_prompt = 1 + i / 16 * 4;
      SCOPED_TRACE(testing::Message() << layers.size() << " layers, arena of " << arena_size << ", " << first_prompt);
      Yielding policy;
      Scheduler::Options options = SharingOptions(/*chunk=*/8);
      options.policy = &policy;
      SchedulerHarness h(layers, arena_size, options);
      h.Add(first_prompt, 40);
      Request several = h.MakeRequest(6, 40);
      several.num_outputs = 2;
      if (!h.scheduler->CheckRequest(several).ok()) continue;
      h.Add(several);
      h.Add(4, 40);
      while (!h.scheduler->empty() && policy.num_yields == 0) h.Step();
      if (policy.num_yields > 0) {
        ++num_yields;
        Request next = h.MakeRequest(0, 1);
        next.prompt = several.prompt;
        next.prompt.insert(next.prompt.end(), h.records[2].tokens.begin(), h.records[2].tokens.end());
        next.prompt.push_back(7);
        h.Add(std::move(next));
      }
      h.RunToEnd();
      num_cached += h.records[4].num_cached;
      h.ExpectAllEnded();
    }
  }
  EXPECT_GT(num_yields, 0);
  EXPECT_GT(num_cached, 0);
}

// A step that only decodes, so that the pacer measures it, prefills all the same if no sequence that decodes has room.
TEST(Preemption, AFullArenaInAStepThatOnlyDecodesStopsNothing) {
  struct Counting : FcfsPolicy {
    void OnPlan(const StepBudget&, RunningSequences) override { ++num_passes; }
    int64_t num_passes = 0;
  };
  int64_t num_second_passes = 0;
  for (int64_t arena_size = 28; arena_size <= 40; ++arena_size) {  // blocks; the 64th step fills one of them
    for (int64_t i = 0; i < 32; ++i) {
      const int64_t prompt = 1 + i % 8, delay = i / 8;
      SCOPED_TRACE(testing::Message() << "arena of " << arena_size << ", prompt of " << prompt << " after " << delay);
      Counting policy;
      Scheduler::Options options = kOptions;
      options.policy = &policy;
      options.target_step_time = absl::Milliseconds(50);
      options.prefill_chunk_tokens = 1;
      SchedulerHarness h({StaticLayer()}, arena_size, options, /*piece_bytes=*/128);
      h.Add(80, 4);
      for (int64_t step = 0; step < delay; ++step) h.Step();
      h.Add(prompt, 90);
      h.RunToEnd();
      h.ExpectAllEnded();
      num_second_passes += policy.num_passes - h.num_steps;
      EXPECT_LE(policy.num_passes - h.num_steps, 1) << "the probe is over after a step";
    }
  }
  EXPECT_GT(num_second_passes, 0);
}

// If no sequence grows, a swap-out ends at once and the step is planned anew. What it has preempted before still waits.
TEST(Preemption, WhatAStepPreemptsItDoesNotAdmitAgain) {
  struct LastFirst : FcfsPolicy {
    const Sequence* PickToAdmit(const WaitingSequences& waiting) override {
      return num_preempted > 0 ? waiting.back().get() : waiting.front().get();
    }
    // Holds what the third request computes before its fork.
    int64_t TokenLimit(const Sequence& sequence, TokenUse use, int64_t left) override {
      return sequence.request.key == 3 && use != TokenUse::kAdmission && num_preempted == 0 ? 0 : left;
    }
    void OnPreempt(const Sequence&) override { ++num_preempted; }
    int num_preempted = 0;
  };
  LastFirst policy;
  Scheduler::Options options = SharingOptions(/*chunk=*/8);
  options.policy = &policy;
  options.swap = {.host_tier_bytes = 1 << 20, .copy_clock = absl::UnixEpoch, .always_copy = true};
  SchedulerHarness h({StaticLayer()}, 55, options, /*piece_bytes=*/128);  // blocks
  h.Add(200, 4);
  h.Add(1, 40);
  Request several = h.MakeRequest(5, 2);  // computed again: not swapped out
  several.num_outputs = 2;
  h.Add(several);
  // Then the requests hold 48, 6 and 1 blocks. The first needs 2 more, and the second one.
  for (int i = 0; i < 24; ++i) h.Step();
  ASSERT_EQ(h.scheduler->counts().num_running, 4);
  ASSERT_EQ(policy.num_preempted, 0);
  h.Step();
  EXPECT_EQ(policy.num_preempted, 3);
  EXPECT_EQ(h.scheduler->counts().num_running, 1);
  EXPECT_EQ(h.shapes, (std::vector<RowShape>{{192, 8, true}}));
  h.RunToEnd();
  h.ExpectAllEnded();
}

// Outputs of one token need what admission promised to their prompts, and nothing else.
TEST(Preemption, AdmissionPromisesPromptsAllThatTheyNeed) {
  const std::vector<std::vector<LayerCacheSpec>> models = {{StaticLayer()},    {RecurrentLayer()},
                                                           {SlidingLayer(6)},  {SlidingLayer(17, 5), StaticLayer()},
                                                           {ChunkedLayer(12)}, HybridLayers()};
  int64_t num_waited = 0;
  for (size_t model = 0; model < models.size(); ++model) {
    for (uint32_t seed = 0; seed < 100; ++seed) {
      SCOPED_TRACE(testing::Message() << "model " << model << ", seed " << seed);
      std::mt19937 random(seed);
      Scheduler::Options options = SharingOptions(/*chunk=*/1 + random() % 12);
      options.share_prefixes = random() % 2 == 0;
      options.state_checkpoint_tokens = 0;
      // Four states, where a sequence has nothing else.
      SchedulerHarness h(models[model], model == 1 ? 1 : 3 + random() % 16, options);
      const int64_t longest = std::min<int64_t>(60, h.scheduler->max_sequence_tokens());
      for (int i = 0; i < 12; ++i) {
        Request request = h.MakeRequest(1 + random() % (longest - 1), 1);
        request.num_outputs = 1 + random() % 4;
        if (!h.scheduler->CheckRequest(request).ok()) request.num_outputs = 1;
        if (random() % 2 == 0) std::fill(request.prompt.begin(), request.prompt.end(), 7);
        h.Add(request);
      }
      while (!h.scheduler->empty() && !HasFailure()) {
        h.Step();
        num_waited += h.scheduler->counts().num_new > 0 ? 1 : 0;
        EXPECT_EQ(h.scheduler->counts().num_preemptions, 0);
      }
      if (HasFailure()) return;
      h.ExpectAllEnded();
    }
  }
  EXPECT_GT(num_waited, 1000);
}

// A sequence for which no other can be preempted also grows if the arena has no room for a checkpoint beside its
// states.
TEST(Preemption, ACheckpointMakesWayForTheStatesThatItExpandsTo) {
  const std::vector<LayerCacheSpec> layers = WithWideStates({StaticLayer(), RecurrentLayer()});
  Scheduler::Options options = kOptions;
  options.max_step_tokens = options.prefill_chunk_tokens = 40;
  options.share_prefixes = true;
  // States and 8 blocks.
  SchedulerHarness h(layers, 512 + 8 * 128, options, /*piece_bytes=*/1, /*checkpoints=*/true);
  ASSERT_EQ(h.scheduler->max_sequence_tokens(), 32);
  h.Add(4, 1);
  h.RunToEnd();
  Request request = h.MakeRequest(30, 2);
  std::copy_n(h.requests[1].prompt.begin(), 4, request.prompt.begin());
  const RequestKey key = h.Add(request);
  h.RunToEnd();
  EXPECT_EQ(h.records[key].num_cached, 4);
  EXPECT_EQ(h.records[key].finish, FinishReason::kLength);
  h.ExpectAllEnded();
}

TEST(Preemption, CancelAndDeadlineReachThePreempted) {
  SchedulerHarness h({StaticLayer()}, 8, kOptions);
  h.Add(10, 40);
  h.Add(10, 40);
  Request request = h.MakeRequest(10, 40);
  request.deadline = h.clock.Now() + absl::Seconds(10);
  const RequestKey late = h.Add(request);
  StepUntilPreemption(&h);
  const std::vector<int32_t> before = h.records[late].tokens;
  h.clock.Advance(absl::Seconds(10));
  h.Step();
  EXPECT_EQ(h.records[late].finish, FinishReason::kDeadline);
  EXPECT_EQ(h.records[late].times.num_preemptions, 1);
  EXPECT_EQ(h.records[late].tokens, before);
  StepUntilPreemption(&h);
  h.scheduler->Cancel(2, FinishReason::kCancelled);
  h.Step();
  EXPECT_EQ(h.records[2].finish, FinishReason::kCancelled);
  h.RunToEnd();
  h.ExpectAllEnded();
}

}  // namespace
}  // namespace berth
