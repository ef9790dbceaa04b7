// Preempted sequences whose caches are swapped out: when that is done, and that nothing is computed again for them.
#include <gtest/gtest.h>

#include "scheduler/tiers/copy_cost.h"
#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

absl::Time clock_time = absl::UnixEpoch();
absl::Duration per_look;  // what the copies' clock moves by when it is read
absl::Time CopyClock() { return clock_time += per_look; }

Scheduler::Options Swapping(int64_t host_tier_bytes, int64_t step_bytes = 1 << 20) {
  return {.max_running = 4,
          .max_step_tokens = 16,
          .prefill_chunk_tokens = 8,
          .max_sequence_tokens = 1000,
          .swap = {.host_tier_bytes = host_tier_bytes, .copy_bytes_per_step = step_bytes, .copy_clock = CopyClock}};
}

// Two sequences that run to the end. The younger one is preempted.
struct Pair {
  explicit Pair(const Scheduler::Options& options, absl::Duration per_copy = absl::ZeroDuration(),
                const std::vector<LayerCacheSpec>& layers = {StaticLayer(), RecurrentLayer()})
      : h(layers, 8, options) {
    per_look = per_copy;
    h.Add(10, 34);
    h.Add(10, 34);
    while (!h.scheduler->empty()) {
      const int64_t before = h.scheduler->counts().num_preemptions;
      h.clock.Advance(absl::Seconds(1));
      h.Step();
      largest_tier = std::max(largest_tier, h.scheduler->host_tier().sequence_bytes);
      num_empty += h.shapes.empty() ? 1 : 0;
      for (const RowShape& row : h.shapes) num_computed += row.num_tokens;
      if (h.scheduler->counts().num_preemptions > before) waiting_tokens = h.scheduler->counts().waiting_tokens;
    }
    h.ExpectAllEnded();
    EXPECT_GE(h.scheduler->counts().num_preemptions, 1);
    EXPECT_EQ(h.scheduler->host_tier().sequence_bytes, 0);
    per_look = absl::ZeroDuration();
  }

  SchedulerHarness h;
  int64_t num_computed = 0;
  int64_t num_empty = 0;  // steps
  int64_t largest_tier = 0;
  int64_t waiting_tokens = 0;
};

TEST(Swap, ASwappedOutSequenceResumesWithoutComputingAgain) {
  const Pair pair(Swapping(1 << 20));
  EXPECT_EQ(pair.h.scheduler->counts().num_swap_outs, pair.h.scheduler->counts().num_preemptions);
  EXPECT_EQ(pair.h.scheduler->counts().num_recomputes, 0);
  EXPECT_EQ(pair.num_computed, 2 * (10 + 34 - 1));
  EXPECT_EQ(pair.waiting_tokens, 1) << "more than the newest token is left to compute";
  EXPECT_GT(pair.largest_tier, 0);
}

TEST(Swap, CrossBlocksComeBackWithoutRunningTheEncoder) {
  const Pair pair(Swapping(1 << 20), absl::ZeroDuration(), {CrossLayer(), SlidingLayer(6), RecurrentLayer()});
  EXPECT_GT(pair.h.scheduler->counts().num_swap_outs, 0);
  EXPECT_EQ(pair.num_computed, 2 * (10 + 34 - 1));
}

TEST(Swap, WithoutATierOrRoomEverythingIsComputedAgain) {
  for (const Scheduler::Options& options : {Swapping(0), Swapping(100)}) {
    const Pair pair(options);
    EXPECT_EQ(pair.h.scheduler->counts().num_swap_outs, 0);
    EXPECT_EQ(pair.h.scheduler->counts().num_recomputes, pair.h.scheduler->counts().num_preemptions);
    EXPECT_EQ(pair.largest_tier, 0);
    EXPECT_GT(pair.num_computed, 2 * (10 + 34 - 1));
  }
}

// Three sequences that outgrow the arena together. The youngest is swapped out, fifty bytes a step.
struct SwappingOut {
  SwappingOut() : h({StaticLayer(), RecurrentLayer()}, 8, Swapping(1 << 20, /*step_bytes=*/50)) {
    h.Add(10, 40);
    h.Add(3, 40);
    young = h.Add(10, 40);
    while (h.scheduler->counts().num_preemptions == 0) Step();
  }
  void Step() {
    h.Step();
    for (const RowShape& row : h.shapes) num_computed += row.num_tokens;
  }

  SchedulerHarness h;
  RequestKey young = 0;
  int64_t num_computed = 0;
};

TEST(Swap, SequencesWithRoomRunDuringASwapOut) {
  SwappingOut pending;
  SchedulerHarness& h = pending.h;
  EXPECT_EQ(h.scheduler->counts().num_swap_outs, 0) << "it was swapped out at once";
  int64_t num_steps = 0;
  for (; h.scheduler->counts().num_swap_outs == 0; ++num_steps) {
    EXPECT_EQ(h.scheduler->counts().num_recomputes, 0) << "a counter that falls again when the copy ends";
    EXPECT_EQ(h.shapes.size(), 1u) << "the second has room, the first waits for the third's";
    EXPECT_EQ(h.scheduler->counts().waiting_tokens, 10 + static_cast<int64_t>(h.records[pending.young].tokens.size()));
    pending.Step();
  }
  EXPECT_GE(num_steps, 2);
  EXPECT_EQ(h.scheduler->counts().waiting_tokens, 1);
  pending.Step();
  EXPECT_EQ(h.shapes.size(), 2u);
  while (!h.scheduler->empty()) pending.Step();
  h.ExpectAllEnded();
  EXPECT_EQ(pending.num_computed, 10 + 40 - 1 + 3 + 40 - 1 + 10 + 40 - 1);
  EXPECT_EQ(h.scheduler->host_tier().sequence_bytes, 0);
}

TEST(Swap, ASwapOutIsCancelledWhenThereIsRoomAgain) {
  SwappingOut pending;
  SchedulerHarness& h = pending.h;
  h.scheduler->Cancel(1, FinishReason::kCancelled);
  pending.Step();
  EXPECT_EQ(h.shapes.size(), 2u);
  EXPECT_EQ(h.scheduler->host_tier().sequence_bytes, 0);
  EXPECT_EQ(h.scheduler->counts().num_swap_outs, 0);
  while (!h.scheduler->empty()) pending.Step();
  h.ExpectAllEnded();
}

TEST(Swap, CancellingDuringASwapOutReturnsEverything) {
  SwappingOut pending;
  SchedulerHarness& h = pending.h;
  EXPECT_GT(h.scheduler->host_tier().sequence_bytes, 0);
  h.scheduler->Cancel(pending.young, FinishReason::kCancelled);
  pending.Step();
  EXPECT_EQ(h.scheduler->host_tier().sequence_bytes, 0);
  EXPECT_EQ(h.shapes.size(), 2u);
  while (!h.scheduler->empty()) pending.Step();
  h.ExpectAllEnded();
}

TEST(Swap, NobodyWaitsForACopyWhereNobodyRuns) {
  // One other only, which needs the room.
  const Pair pair(Swapping(1 << 20, /*step_bytes=*/100));
  EXPECT_EQ(pair.h.scheduler->counts().num_swap_outs, pair.h.scheduler->counts().num_preemptions);
  EXPECT_EQ(pair.num_computed, 2 * (10 + 34 - 1));
  EXPECT_EQ(pair.num_empty, 0);
}

TEST(Swap, TheCheaperActionIsTaken) {
  // Prefills in the harness take no time of its clock within a step: any measured copy is dearer, after the first.
  const Pair slow(Swapping(1 << 20), absl::Seconds(100));
  EXPECT_LE(slow.h.scheduler->counts().num_swap_outs, 1);
}

TEST(RunningRate, WeighsByTimeAndForgets) {
  RunningRate rate;
  EXPECT_EQ(rate.TimeFor(5), absl::ZeroDuration());
  rate.Add(100, absl::Seconds(10));
  EXPECT_EQ(rate.TimeFor(5), absl::Milliseconds(500));
  for (int i = 0; i < 200; ++i) rate.Add(100, absl::Seconds(1));
  EXPECT_NEAR(absl::ToDoubleSeconds(rate.TimeFor(100)), 1, 1e-6);
  rate.Add(0, absl::Seconds(-5));
  EXPECT_GT(rate.TimeFor(100), absl::ZeroDuration());
}

}  // namespace
}  // namespace berth
