// What the engine does with requests, from submission to their last event.
#include "tests/scheduler/engine_test.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "scheduler/policy/fair_policy.h"
#include "scheduler/refusal.h"
#include "tests/testing/fake_constraint.h"
#include "tests/testing/fake_prefix_disk.h"

namespace berth {
namespace {

TEST_F(EngineTest, RefusesOptionsThatMakeNoSense) {
  options_.max_queue = 0;
  EXPECT_EQ(Engine::Create(tiny_.cache.get(), &runner_, &sink_, options_).status(),
            absl::InvalidArgumentError("max_queue is 0; at least 1 is needed"));
  options_.max_queue = 1;
  options_.scheduler.max_running = 0;
  EXPECT_EQ(Engine::Create(tiny_.cache.get(), &runner_, &sink_, options_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A library keeps things for each thread, such as the handles of cuBLAS.
TEST_F(EngineTest, WhatComesBeforeTheStepsRunsOnTheirThread) {
  std::thread::id of_steps;
  runner_.on_run = [&of_steps](const StepPlan&) {
    of_steps = std::this_thread::get_id();
    return absl::OkStatus();
  };
  MakeEngine();
  std::thread::id of_first;
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 3, 2)).ok());
  const absl::Status started = engine_->Start([&] {
    of_first = std::this_thread::get_id();
    EXPECT_EQ(of_steps, std::thread::id()) << "a step ran before";
    return absl::OkStatus();
  });
  EXPECT_TRUE(started.ok());
  ExpectIdle();
  EXPECT_EQ(of_steps, of_first);
  EXPECT_NE(of_first, std::this_thread::get_id());
}

TEST_F(EngineTest, AStartTellsTheErrorOfWhatComesBeforeTheSteps) {
  MakeEngine();
  EXPECT_EQ(engine_->Start([] { return absl::ResourceExhaustedError("no memory"); }),
            absl::ResourceExhaustedError("no memory"));
}

TEST_F(EngineTest, DropsPrefixesBetweenTheStepsOfARequest) {
  options_.scheduler.share_prefixes = true;
  StartEngine();
  Request first = MakeRequest(1, 20, 3);
  first.cache_salt = "a";
  ASSERT_TRUE(engine_->Submit(first).ok());
  sink_.WaitFor(1);
  Request second = first;  // shares what the first one left
  second.key = 2;
  second.max_tokens = 50;
  gate_.Close();
  ASSERT_TRUE(engine_->Submit(second).ok());
  std::promise<FreedBytes> freed;
  engine_->DropPrefixes("a", [&](const FreedBytes& bytes, const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    freed.set_value(bytes);
  });
  gate_.Open();
  EXPECT_GT(freed.get_future().get().arena, 0);
  const RequestRecord record = sink_.WaitFor(2);
  EXPECT_EQ(record.finish, FinishReason::kLength);
  EXPECT_EQ(record.tokens, FakeModelRunner::AnswerTo(second).tokens);

  std::promise<void> all;
  engine_->DropPrefixes(std::nullopt, [&](const FreedBytes&, const absl::Status&) { all.set_value(); });
  all.get_future().get();
  ExpectIdle();
}

// The disk does nothing until it is asked what it has done.
TEST_F(EngineTest, AnIdleEngineAsksTheDiskAgain) {
  FakePrefixDisk disk;
  std::atomic<int> num_written{0};
  disk.on_write = [&num_written] {
    ++num_written;
    return absl::OkStatus();
  };
  options_.scheduler.share_prefixes = true;
  options_.scheduler.swap.host_tier_bytes = 1 << 20;
  options_.scheduler.swap.always_copy = true;
  options_.scheduler.prefixes = {.disk = &disk, .disk_limit_bytes = 1 << 20, .idle = absl::ZeroDuration()};
  StartEngine();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 20, 3)).ok());
  sink_.WaitFor(1);
  const auto written = [&] {
    clock_.Advance(absl::Milliseconds(10));
    return num_written > 0;
  };
  WaitUntil(written, "the file of a prefix, without another request");
  engine_.reset();  // before the disk
}

// A watchdog says where a step hangs. The end of a drop is delivered within a step, before its plan.
TEST_F(EngineTest, APlanAfterADeliveryIsAPhaseOfItsOwn) {
  std::atomic<bool> delivered{false};
  std::promise<StepPhase> planning;
  options_.now = [&] {
    if (delivered.exchange(false)) planning.set_value(engine_->progress()->Read().phase);
    return clock_.Now();
  };
  StartEngine();
  gate_.Close();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 20, 50)).ok());
  gate_.WaitForArrival();
  engine_->DropPrefixes(std::nullopt, [&](const FreedBytes&, const absl::Status&) { delivered = true; });
  gate_.Open();
  EXPECT_EQ(planning.get_future().get(), StepPhase::kPlan);
  engine_.reset();  // its clock reads what ends with this function
}

TEST_F(EngineTest, AnswersARequest) {
  StartEngine();
  const Request request = MakeRequest(1, 20, 30);
  ASSERT_TRUE(engine_->Submit(request).ok());
  const RequestRecord record = sink_.WaitFor(1);
  EXPECT_EQ(record.tokens, FakeModelRunner::AnswerTo(request).tokens);
  EXPECT_EQ(record.finish, FinishReason::kLength);
  ExpectIdle();
  const EngineLoad load = engine_->GetLoad();
  EXPECT_EQ(load.counts.prompt_tokens, 20);
  EXPECT_EQ(load.counts.generation_tokens, 30);
  EXPECT_EQ(load.num_steps, 32);  // three prefill chunks; the last one gives the first token
  const std::vector<StepStats> steps = sink_.steps();
  ASSERT_EQ(steps.size(), 32u);
  EXPECT_EQ(steps[0].num_tokens, 8);
  EXPECT_EQ(steps[0].num_decode_rows, 0);
  EXPECT_EQ(steps[31].num_rows, 1);
  EXPECT_EQ(steps[31].num_decode_rows, 1);
}

TEST_F(EngineTest, WhoSeesTheEndSeesTheBytesReturned) {
  StartEngine();
  for (RequestKey key = 1; key <= 50; ++key) {
    ASSERT_TRUE(engine_->Submit(MakeRequest(key, 5, 3)).ok());
    sink_.WaitFor(key);
    EXPECT_EQ(engine_->GetLoad().occupancy.num_leases, 0);
  }
}

TEST_F(EngineTest, RefusesWhatItCannotServe) {
  StartEngine();
  EXPECT_EQ(engine_->max_sequence_tokens(), 200);
  EXPECT_TRUE(engine_->Submit(MakeRequest(1, 199, 1)).ok());
  EXPECT_EQ(engine_->Submit(MakeRequest(2, 199, 2)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->Submit(MakeRequest(3, 0, 2)).code(), absl::StatusCode::kInvalidArgument);
  ExpectIdle();
  EXPECT_EQ(sink_.Get(2).num_ends, 0);
}

TEST_F(EngineTest, IgnoresStopTokensOutsideTheVocabulary) {
  StartEngine();
  Request request = MakeRequest(1, 5, 4);
  request.stop_token_ids = {-5, 100, 1 << 30};
  request.min_tokens = 4;
  runner_.on_row = [](const StepRow& row, RowResult*) { EXPECT_TRUE(row.banned.empty()); };
  ASSERT_TRUE(engine_->Submit(request).ok());
  EXPECT_EQ(sink_.WaitFor(1).finish, FinishReason::kLength);
}

TEST_F(EngineTest, RefusesWhenTheQueueIsFullAndAcceptsWhenItIsNot) {
  MakeEngine();
  for (RequestKey key = 1; key <= 3; ++key) ASSERT_TRUE(engine_->Submit(MakeRequest(key, 5, 50)).ok());
  const absl::Status status = engine_->Submit(MakeRequest(4, 5, 50));
  EXPECT_EQ(status.message(), "the queue is full: max_queue is 3 requests; retry later");
  EXPECT_EQ(RefusalOf(status)->reason, RefusalReason::kQueueFull);
  EXPECT_EQ(engine_->GetLoad().counts.num_waiting, 3);
  EXPECT_EQ(engine_->GetLoad().counts.waiting_tokens, 15);
  gate_.Close();
  engine_->Start();
  gate_.WaitForArrival();  // two are admitted, one waits: there is room for two
  EXPECT_EQ(engine_->GetLoad().counts.num_running, 2);
  EXPECT_EQ(engine_->GetLoad().counts.num_waiting, 1);
  EXPECT_TRUE(engine_->Submit(MakeRequest(5, 5, 50)).ok());
  EXPECT_TRUE(engine_->Submit(MakeRequest(6, 5, 50)).ok());
  EXPECT_EQ(engine_->Submit(MakeRequest(7, 5, 50)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->GetLoad().counts.num_waiting, 3);
  EXPECT_EQ(engine_->GetLoad().counts.waiting_tokens, 15);
  gate_.Open();
  ExpectIdle();
  for (RequestKey key : {1, 2, 3, 5, 6}) EXPECT_EQ(sink_.Get(key).finish, FinishReason::kLength);
  EXPECT_EQ(sink_.Get(4).num_ends, 0);
}

TEST_F(EngineTest, CountsTheTokensOfConcurrentSubmissionsExactly) {
  options_.max_queue = 1000;
  options_.max_queued_tokens = 100;
  MakeEngine();  // not started: nothing leaves the queue
  std::atomic<int64_t> accepted{0};
  const auto submit = [&](RequestKey first) {
    for (RequestKey key = first; key < first + 50; ++key) {
      const absl::Status s = engine_->Submit(MakeRequest(key, 7, 2));
      accepted += s.ok() ? 7 : 0;
      EXPECT_TRUE(s.ok() || RefusalOf(s)->reason == RefusalReason::kQueuedTokens) << s;
    }
  };
  std::vector<std::thread> threads;
  for (RequestKey i = 0; i < 4; ++i) threads.emplace_back(submit, 1 + 100 * i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(accepted, 98);
  EXPECT_EQ(engine_->GetLoad().counts.waiting_tokens, 98);
  engine_->Start();
  ExpectIdle();
  EXPECT_TRUE(engine_->Submit(MakeRequest(1000, 100, 2)).ok()) << "there is room again";
  ExpectIdle();
}

TEST_F(EngineTest, APausedRequestContinuesOrEndsUnread) {
  options_.unread_timeout = absl::Seconds(30);
  gate_.Close();
  StartEngine();
  const Request continued = MakeRequest(1, 20, 30);
  ASSERT_TRUE(engine_->Submit(continued).ok());
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, 20, 30)).ok());
  gate_.WaitForArrival();
  engine_->SetPaused(1, true);
  engine_->SetPaused(2, true);
  gate_.Open();
  WaitForPaused(2);
  EXPECT_EQ(engine_->GetLoad().counts.num_running, 0);
  EXPECT_EQ(engine_->GetLoad().occupancy.num_leases, 0);
  ASSERT_TRUE(engine_->Submit(MakeRequest(3, 5, 5)).ok());
  EXPECT_EQ(sink_.WaitFor(3).finish, FinishReason::kLength) << "others go on";
  engine_->SetPaused(1, false);
  const RequestRecord record = sink_.WaitFor(1);
  EXPECT_EQ(record.tokens, FakeModelRunner::AnswerTo(continued).tokens);
  EXPECT_EQ(record.finish, FinishReason::kLength);
  clock_.Advance(absl::Seconds(30));
  engine_->SetPaused(1, false);  // wakes the engine, whose clock the test moved
  EXPECT_EQ(sink_.WaitFor(2).finish, FinishReason::kUnread);
  ExpectIdle();
}

// A step takes 10 ms, and 1 ms more for each prefilled token.
TEST_F(EngineTest, RefusesByThePredictedWaitAndTheDeadline) {
  runner_.on_run = [this](const StepPlan& plan) {
    gate_.Pass();
    clock_.Advance(absl::Milliseconds(10 + plan.num_tokens - plan.num_decode_rows));
    return absl::OkStatus();
  };
  options_.max_queue = 1000;
  options_.max_wait = absl::Seconds(1);
  options_.scheduler.max_running = 8;
  MakeEngine();
  Request hurried = MakeRequest(1, 100, 1);
  hurried.deadline = clock_.Now() + absl::Milliseconds(1);
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, 5000 / 50, 5)).ok()) << "nothing is measured yet";
  engine_->Start();
  ExpectIdle();

  // Its own prefill: 13 chunks of 8 tokens, 18 ms each. An idle engine tries it all the same.
  hurried.deadline = clock_.Now() + absl::Milliseconds(150);
  ASSERT_TRUE(engine_->Submit(hurried).ok());
  EXPECT_EQ(sink_.WaitFor(1).finish, FinishReason::kDeadline);
  ExpectIdle();
  // Another's prefill is before it.
  gate_.Close();
  ASSERT_TRUE(engine_->Submit(MakeRequest(3, 100, 1)).ok());
  hurried = MakeRequest(4, 100, 1);
  hurried.deadline = clock_.Now() + absl::Milliseconds(300);
  const absl::Status late = engine_->Submit(hurried);
  ASSERT_TRUE(RefusalOf(late).has_value()) << late;
  EXPECT_EQ(RefusalOf(late)->reason, RefusalReason::kDeadline);
  hurried.deadline = clock_.Now() + absl::Milliseconds(800);
  EXPECT_TRUE(engine_->Submit(hurried).ok());
  gate_.Open();
  EXPECT_EQ(sink_.WaitFor(4).finish, FinishReason::kLength);
  ExpectIdle();

  // 100 tokens take about 170 ms, so about 6 requests fit a second.
  gate_.Close();
  int accepted = 0;
  absl::Status refused;
  for (RequestKey key = 10; key < 60 && refused.ok(); ++key) {
    refused = engine_->Submit(MakeRequest(key, 100, 1));
    accepted += refused.ok();
  }
  EXPECT_EQ(RefusalOf(refused)->reason, RefusalReason::kWait) << refused;
  EXPECT_GE(accepted, 5);
  EXPECT_LE(accepted, 9);
  EXPECT_EQ(RefusalOf(engine_->CheckArrival(absl::InfiniteFuture(), "", 0))->reason, RefusalReason::kWait);
  gate_.Open();
  ExpectIdle();
  EXPECT_TRUE(engine_->CheckArrival(absl::InfiniteFuture(), "", 0).ok()) << "an idle engine has no wait";
  EXPECT_EQ(engine_->Submit(MakeRequest(99, 100, 1)), absl::OkStatus());
  ExpectIdle();
}

// Under fair shares, what another tenant has waiting is not before the first request of a tenant.
TEST_F(EngineTest, ATenantWithNothingWaitingIsNotRefusedForAnothersBacklog) {
  FairPolicy policy({});
  runner_.on_run = [this](const StepPlan& plan) {
    gate_.Pass();
    clock_.Advance(absl::Milliseconds(10) * plan.num_tokens);
    return absl::OkStatus();
  };
  options_.max_queue = 1000;
  options_.max_wait = absl::Seconds(3);
  options_.scheduler.max_running = 8;
  options_.scheduler.policy = &policy;
  StartEngine();
  const auto submit = [this](RequestKey key, const char* tenant) {
    Request request = MakeRequest(key, 100, 1);
    request.cache_salt = tenant;
    return engine_->Submit(std::move(request));
  };
  ASSERT_TRUE(submit(1, "heavy").ok());
  ExpectIdle();
  EXPECT_EQ(engine_->GetLoad().predicted_wait_ms, 0);
  gate_.Close();
  absl::Status refused;
  for (RequestKey key = 10; refused.ok(); ++key) refused = submit(key, "heavy");
  EXPECT_EQ(RefusalOf(refused)->reason, RefusalReason::kWait) << refused;
  const EngineLoad load = engine_->GetLoad();
  EXPECT_GT(load.predicted_wait_ms, 3000);
  EXPECT_LT(load.predicted_wait_new_tenant_ms, 3000);
  EXPECT_EQ(submit(5, "light"), absl::OkStatus());
  gate_.Open();
  EXPECT_EQ(sink_.WaitFor(5).finish, FinishReason::kLength);
  ExpectIdle();
  EXPECT_EQ(engine_->GetLoad().predicted_wait_new_tenant_ms, 0);
  engine_.reset();  // before the policy goes
}

TEST_F(EngineTest, ACancelledRequestGivesItsBytesBack) {
  gate_.Close();
  StartEngine();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 100)).ok());
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, 5, 100)).ok());
  gate_.WaitForArrival();
  ASSERT_TRUE(engine_->Submit(MakeRequest(3, 5, 100)).ok());
  engine_->Cancel(1);
  engine_->Cancel(2, FinishReason::kStop);
  engine_->Cancel(3, FinishReason::kDeadline);
  engine_->Cancel(4);
  gate_.Open();
  EXPECT_EQ(sink_.WaitFor(1).finish, FinishReason::kCancelled);
  EXPECT_EQ(sink_.WaitFor(2).finish, FinishReason::kStop);
  EXPECT_EQ(sink_.WaitFor(3).finish, FinishReason::kDeadline);
  EXPECT_TRUE(sink_.Get(3).tokens.empty());
  ExpectIdle();
  engine_->Cancel(1);
  ExpectIdle();
  EXPECT_EQ(sink_.Get(1).num_ends, 1);
}

TEST_F(EngineTest, DeadlinesEndRunningAndWaitingOnes) {
  gate_.Close();
  StartEngine();
  for (RequestKey key = 1; key <= 3; ++key) {
    Request request = MakeRequest(key, 5, 150);
    request.deadline = clock_.Now() + absl::Seconds(5);
    ASSERT_TRUE(engine_->Submit(std::move(request)).ok());
  }
  gate_.WaitForArrival();
  clock_.Advance(absl::Seconds(5));
  gate_.Open();
  for (RequestKey key = 1; key <= 3; ++key) EXPECT_EQ(sink_.WaitFor(key).finish, FinishReason::kDeadline);
  ExpectIdle();
}

TEST_F(EngineTest, ConstrainedRequestsAreMaskedByWorkersAndResume) {
  options_.scheduler.mask_threads = 2;
  StartEngine();
  Request request = MakeRequest(1, 20, 30);
  request.stop_token_ids = {42};
  request.constraint =
      std::make_shared<FakeConstraint>(FakeConstraint::Options{.seed = 5, .end_tokens = {42}, .complete = 0});
  const FakeModelRunner::Answer answer = FakeModelRunner::AnswerTo(request);
  ASSERT_GT(answer.tokens.size(), 7u);
  ASSERT_TRUE(engine_->Submit(request).ok());
  EXPECT_EQ(sink_.WaitFor(1).tokens, answer.tokens);
  request.key = 2;
  request.progress = std::make_shared<Progress>();
  request.progress->tokens.assign(answer.tokens.begin(), answer.tokens.begin() + 7);
  ASSERT_TRUE(engine_->Submit(request).ok());
  EXPECT_EQ(sink_.WaitFor(2).tokens, answer.tokens);
  EXPECT_EQ(sink_.WaitFor(2).finish, answer.finish);
  ExpectIdle();
  EXPECT_GT(engine_->GetLoad().counts.forced_tokens, 0);
  request.key = 3;
  request.progress = std::make_shared<Progress>();
  request.progress->tokens = {42};
  EXPECT_EQ(engine_->Submit(request),
            absl::InvalidArgumentError("progress of 1 tokens does not follow the constraint"));
}

TEST_F(EngineTest, GivesTheTokensOfItsProgressAgainAndGoesOn) {
  StartEngine();
  Request request = MakeRequest(1, 5, 12);
  const std::vector<int32_t> answer = FakeModelRunner::AnswerTo(request).tokens;
  request.progress = std::make_shared<Progress>();
  request.progress->tokens.assign(answer.begin(), answer.begin() + 7);
  ASSERT_TRUE(engine_->Submit(request).ok());
  EXPECT_EQ(sink_.WaitFor(1).tokens, answer);
  // One that is over is only given again.
  request.key = 2;
  request.progress = std::make_shared<Progress>();
  request.progress->tokens = answer;
  EXPECT_EQ(engine_->Submit(request).code(), absl::StatusCode::kInvalidArgument) << "there is no token left for it";
  request.progress->finish = FinishReason::kLength;
  ASSERT_TRUE(engine_->Submit(request).ok());
  const RequestRecord record = sink_.WaitFor(2);
  EXPECT_EQ(record.tokens, answer);
  EXPECT_EQ(record.finish, FinishReason::kLength);
  EXPECT_EQ(record.num_ends, 1);
  ExpectIdle();
  EXPECT_EQ(engine_->GetLoad().counts.generation_tokens, 5);
  request.progress->tokens[3] = 100;
  EXPECT_EQ(engine_->Submit(request).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace berth
