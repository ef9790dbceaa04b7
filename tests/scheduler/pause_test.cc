// Requests whose clients do not read: they leave the steps, delay no other request, and continue with
// the same tokens.
#include <gtest/gtest.h>

#include "scheduler/policy/fair_policy.h"
#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

const Scheduler::Options kOptions = {
    .max_running = 2, .max_step_tokens = 16, .prefill_chunk_tokens = 8, .max_sequence_tokens = 1000};

void Pause(SchedulerHarness* h, RequestKey key, absl::Duration time = absl::Minutes(1)) {
  h->scheduler->Pause(key, h->clock.Now(), time);
}

TEST(Pause, APausedRequestGetsNoTokensAndOthersUseItsPlace) {
  SchedulerHarness h({StaticLayer()}, 100, kOptions);
  const RequestKey paused = h.Add(10, 40);
  h.Add(10, 40);
  const RequestKey third = h.Add(10, 20);  // there are two places
  for (int i = 0; i < 5; ++i) h.Step();
  const size_t had = h.records[paused].tokens.size();
  EXPECT_GT(had, 0u);
  EXPECT_TRUE(h.records[third].tokens.empty());
  Pause(&h, paused);
  EXPECT_EQ(h.scheduler->counts().num_paused, 1);
  EXPECT_EQ(h.scheduler->counts().num_waiting, 1) << "the third";
  while (h.records[third].num_ends == 0) h.Step();
  EXPECT_EQ(h.records[paused].tokens.size(), had);
  h.scheduler->Unpause(paused);
  EXPECT_EQ(h.scheduler->counts().num_paused, 0);
  h.RunToEnd();
  EXPECT_EQ(h.records[paused].finish, FinishReason::kLength);
  EXPECT_EQ(h.scheduler->counts().num_pauses, 1);
  h.ExpectAllEnded();
}

TEST(Pause, APausedRequestHoldsNoRoom) {
  SchedulerHarness h({StaticLayer()}, 8, kOptions);  // 64 tokens
  const RequestKey paused = h.Add(40, 10);
  h.Step();
  const RequestKey large = h.Add(60, 4);
  h.Step();
  EXPECT_EQ(h.scheduler->counts().num_running, 1);
  Pause(&h, paused);
  while (h.records[large].num_ends == 0) h.Step();
  EXPECT_EQ(h.GetOccupancy().num_leases, 0);
  h.scheduler->Unpause(paused);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Pause, WhatNobodyNeededIsNotComputedAgain) {
  Scheduler::Options options = kOptions;
  options.share_prefixes = true;
  options.state_checkpoint_tokens = 8;
  SchedulerHarness h({StaticLayer(), RecurrentLayer()}, 100, options);
  const RequestKey key = h.Add(40, 20);
  while (h.records[key].tokens.size() < 10) h.Step();
  Pause(&h, key);
  EXPECT_EQ(h.GetOccupancy().num_leases, 0);
  h.scheduler->Unpause(key);
  h.Step();
  ASSERT_EQ(h.shapes.size(), 1u);
  EXPECT_GE(h.shapes[0].start, 40);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Pause, EndsWhenItsTimeIsOver) {
  SchedulerHarness h({StaticLayer()}, 100, kOptions);
  const RequestKey paused = h.Add(10, 40);
  for (int i = 0; i < 5; ++i) h.Step();
  Pause(&h, paused, absl::Seconds(60));
  EXPECT_TRUE(h.scheduler->empty()) << "there is no step to make";
  EXPECT_EQ(h.scheduler->NextIdleWork(h.clock.Now()), h.clock.Now() + absl::Seconds(60));
  h.clock.Advance(absl::Seconds(59));
  h.Step();
  EXPECT_EQ(h.records[paused].num_ends, 0);
  h.clock.Advance(absl::Seconds(1));
  h.Step();
  EXPECT_EQ(h.records[paused].finish, FinishReason::kUnread);
  EXPECT_EQ(h.scheduler->counts().num_paused, 0);
  EXPECT_EQ(h.scheduler->NextIdleWork(h.clock.Now()), absl::InfiniteFuture());
  h.ExpectAllEnded();
}

// A place is free from the pause until the request runs again, or ends.
TEST(Pause, ItsTimeIsCounted) {
  Scheduler::Options options = kOptions;
  options.max_running = 1;
  SchedulerHarness h({StaticLayer()}, 100, options);
  const RequestKey key = h.Add(10, 10);
  Pause(&h, key);  // it never ran
  h.clock.Advance(absl::Seconds(100));
  h.Step();
  EXPECT_EQ(h.records[key].finish, FinishReason::kUnread);
  EXPECT_EQ(h.records[key].times.paused, absl::ZeroDuration());
  const RequestKey first = h.Add(10, 10);
  const RequestKey second = h.Add(10, 10);
  for (int i = 0; i < 5; ++i) h.Step();
  Pause(&h, first);
  h.clock.Advance(absl::Seconds(20));
  h.scheduler->Unpause(first);
  h.Step();
  EXPECT_EQ(h.scheduler->counts().num_running, 1) << "it runs again";
  h.clock.Advance(absl::Seconds(3));
  Pause(&h, first);
  for (int i = 0; i < 5; ++i) h.Step();
  h.clock.Advance(absl::Seconds(4));
  h.scheduler->Unpause(first);
  h.clock.Advance(absl::Seconds(5));
  Pause(&h, second);
  h.Step();  // now there is a place for the first
  while (h.records[first].num_ends == 0) h.Step();
  EXPECT_EQ(h.records[first].times.paused, absl::Seconds(20 + 4 + 5));
  h.clock.Advance(absl::Seconds(100));
  h.Step();
  EXPECT_EQ(h.records[second].finish, FinishReason::kUnread);
  EXPECT_EQ(h.records[second].times.paused, absl::Seconds(100));
  h.ExpectAllEnded();
}

TEST(Pause, DeadlinesAndCancellationsHold) {
  SchedulerHarness h({StaticLayer()}, 100, kOptions);
  Request request = h.MakeRequest(10, 40);
  request.deadline = h.clock.Now() + absl::Seconds(5);
  const RequestKey late = h.Add(std::move(request));
  const RequestKey cancelled = h.Add(10, 40);
  for (int i = 0; i < 5; ++i) h.Step();
  Pause(&h, late);
  Pause(&h, cancelled);
  h.scheduler->Cancel(cancelled, FinishReason::kCancelled);
  h.Step();
  EXPECT_EQ(h.records[cancelled].finish, FinishReason::kCancelled);
  EXPECT_EQ(h.records[late].num_ends, 0);
  h.clock.Advance(absl::Seconds(5));
  h.Step();
  EXPECT_EQ(h.records[late].finish, FinishReason::kDeadline);
  h.ExpectAllEnded();
}

TEST(Pause, TheOutputsOfARequestPauseTogether) {
  Scheduler::Options options = kOptions;
  options.max_running = 4;
  options.max_step_tokens = 32;
  for (const bool beams : {false, true}) {
    SCOPED_TRACE(beams);
    SchedulerHarness h({StaticLayer(), RecurrentLayer()}, 200, options);
    Request request = h.MakeRequest(10, 20);
    request.num_outputs = 3;
    if (beams) request.beams.num_beams = 3;
    const RequestKey key = h.Add(std::move(request));
    for (int i = 0; i < 6; ++i) h.Step();
    Pause(&h, key);
    EXPECT_EQ(h.scheduler->counts().num_paused, 3);
    EXPECT_EQ(h.scheduler->counts().num_pauses, 1);
    EXPECT_EQ(h.GetOccupancy().num_leases, 0);
    // One of its outputs ends meanwhile.
    if (!beams) h.scheduler->Cancel(key, FinishReason::kCancelled, /*output=*/1);
    h.Step();
    EXPECT_EQ(h.scheduler->counts().num_paused, 3);
    h.scheduler->Unpause(key);
    h.RunToEnd();
    h.ExpectAllEnded();
  }
}

TEST(Pause, TwiceUnknownAndEndedKeysDoNothing) {
  SchedulerHarness h({StaticLayer()}, 100, kOptions);
  const RequestKey key = h.Add(10, 5);
  Pause(&h, 77);
  h.scheduler->Unpause(77);
  h.scheduler->Unpause(key);
  h.Step();
  Pause(&h, key);
  Pause(&h, key);
  EXPECT_EQ(h.scheduler->counts().num_pauses, 1);
  h.scheduler->Unpause(key);
  h.scheduler->Unpause(key);
  h.RunToEnd();
  Pause(&h, key);
  EXPECT_EQ(h.scheduler->counts().num_pauses, 1);
  h.ExpectAllEnded();
}

TEST(Pause, ASaveOfAPausedRequestNeedsNoStep) {
  Scheduler::Options options = kOptions;
  RecordingSaveSink sink;
  options.save_sink = &sink;
  SchedulerHarness h({StaticLayer()}, 100, options);
  Request request = h.MakeRequest(10, 20);
  request.saved = true;
  const RequestKey key = h.Add(std::move(request));
  for (int i = 0; i < 5; ++i) h.Step();
  Pause(&h, key);
  sink.is_ready = false;
  h.scheduler->Save(key);
  h.scheduler->RunIdleWork(h.clock.Now());
  EXPECT_TRUE(sink.taken.empty());
  EXPECT_LE(h.scheduler->NextIdleWork(h.clock.Now()), h.clock.Now() + absl::Seconds(1)) << "it tries again";
  sink.is_ready = true;
  h.scheduler->RunIdleWork(h.clock.Now());
  ASSERT_EQ(sink.taken.size(), 1u);
  EXPECT_EQ(sink.taken[0].progress->tokens, h.records[key].tokens);
  h.scheduler->Unpause(key);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Pause, ACacheOnItsWayOutComesToHostMemoryWithoutAStep) {
  Scheduler::Options options = kOptions;
  options.swap = {.host_tier_bytes = 1 << 20, .copy_bytes_per_step = 64, .copy_clock = absl::UnixEpoch};
  SchedulerHarness h({StaticLayer()}, 100, options);
  const RequestKey key = h.Add(40, 20);
  while (h.records[key].tokens.size() < 5) {
    h.clock.Advance(absl::Seconds(1));  // so that copying is worth it
    h.Step();
  }
  Pause(&h, key);
  h.scheduler->RunIdleWork(h.clock.Now());
  EXPECT_EQ(h.GetOccupancy().num_leases, 0);
  EXPECT_EQ(h.scheduler->counts().num_swap_outs, 1);
  EXPECT_EQ(h.scheduler->counts().waiting_tokens, 0);
  h.scheduler->Unpause(key);
  EXPECT_EQ(h.scheduler->counts().waiting_tokens, 1);
  h.RunToEnd();
  h.ExpectAllEnded();
}

TEST(Pause, ACacheOnItsWayInGivesItsRoomBack) {
  Scheduler::Options options = kOptions;
  options.swap = {.host_tier_bytes = 1 << 20, .copy_bytes_per_step = 64, .copy_clock = absl::UnixEpoch};
  SchedulerHarness h({StaticLayer()}, 100, options);
  const auto step = [&] {
    h.clock.Advance(absl::Seconds(1));  // so that copying is worth it
    h.Step();
  };
  const RequestKey key = h.Add(40, 20);
  while (h.records[key].tokens.size() < 5) step();
  Pause(&h, key);
  h.scheduler->RunIdleWork(h.clock.Now());
  ASSERT_EQ(h.scheduler->counts().num_swap_outs, 1);
  h.Add(10, 40);
  step();
  h.scheduler->Unpause(key);
  for (int i = 0; i < 2; ++i) step();
  ASSERT_EQ(h.GetOccupancy().num_leases, 2) << "that of the request that runs, and that of the copy";
  Pause(&h, key);
  EXPECT_EQ(h.GetOccupancy().num_leases, 1);
  step();
  h.scheduler->Unpause(key);
  h.RunToEnd();
  h.ExpectAllEnded();
}

// A tenant that pauses everything stays known while others come and go, and gains nothing by it.
TEST(Pause, AFairTenantKeepsItsAccount) {
  FairPolicy policy({.max_idle_tenants = 0});
  Scheduler::Options options = kOptions;
  options.policy = &policy;
  SchedulerHarness h({StaticLayer()}, 100, options);
  std::vector<RequestKey> keys;
  for (int i = 0; i < 2; ++i) {
    Request request = h.MakeRequest(10, i == 0 ? 30 : 5);
    request.cache_salt = "paused";
    keys.push_back(h.Add(std::move(request)));
  }
  for (int i = 0; i < 3; ++i) h.Step();
  Pause(&h, keys[0]);
  while (h.records[keys[1]].num_ends == 0) h.Step();  // its other request ends
  for (int i = 0; i < 5; ++i) {
    Request request = h.MakeRequest(10, 5);
    request.cache_salt = std::to_string(i);
    h.Add(std::move(request));
    h.RunToEnd();
  }
  EXPECT_EQ(policy.accounts().num_busy(), 1u);
  h.scheduler->Unpause(keys[0]);
  h.RunToEnd();
  EXPECT_EQ(policy.accounts().num_busy(), 0u);
  h.ExpectAllEnded();
}

}  // namespace
}  // namespace berth
