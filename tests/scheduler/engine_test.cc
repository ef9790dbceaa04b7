#include "scheduler/engine.h"

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
#include "tests/testing/failing_storage.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_constraint.h"
#include "tests/testing/fake_model_runner.h"
#include "tests/testing/fake_prefix_disk.h"
#include "tests/testing/recording_sink.h"
#include "tests/testing/tiny_cache.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

// Holds every step until the test lets it go.
class Gate {
 public:
  void Close() {
    MutexLock lock(&mutex_);
    closed_ = true;
  }
  void Open() {
    MutexLock lock(&mutex_);
    closed_ = false;
    changed_.SignalAll();
  }
  // Called by the model.
  void Pass() {
    MutexLock lock(&mutex_);
    arrived_ = true;
    changed_.SignalAll();
    while (closed_) changed_.Wait(&mutex_);
  }
  // Until the model has come to the gate for the first time.
  void WaitForArrival() {
    MutexLock lock(&mutex_);
    while (!arrived_) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool arrived_ ABSL_GUARDED_BY(mutex_) = false;
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest()
      : tiny_({StaticLayer(), SlidingLayer(6), RecurrentLayer()}, /*arena_size=*/400), runner_(tiny_.cache.get()) {
    options_.scheduler = {
        .max_running = 2, .max_step_tokens = 16, .prefill_chunk_tokens = 8, .max_sequence_tokens = 200};
    options_.max_queue = 3;
    options_.check_integrity = true;
    options_.now = [this] { return clock_.Now(); };
    runner_.on_run = [this](const StepPlan&) {
      gate_.Pass();
      return num_failures_.fetch_sub(1) > 0 ? absl::InternalError("the device is unwell") : absl::OkStatus();
    };
  }
  void MakeEngine() {
    auto engine = Engine::Create(tiny_.cache.get(), &runner_, &sink_, options_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  void StartEngine() {
    MakeEngine();
    engine_->Start();
  }
  void TearDown() override {
    gate_.Open();
    engine_.reset();
    EXPECT_EQ(runner_.mismatch(), "");
    EXPECT_TRUE(tiny_.cache->CheckIntegrity().ok());
  }
  Request MakeRequest(RequestKey key, int64_t prompt_tokens, int64_t max_tokens) {
    Request request;
    request.key = key;
    request.prompt.assign(prompt_tokens, static_cast<int32_t>(key % 100));
    request.max_tokens = max_tokens;
    request.arrival = clock_.Now();
    return request;
  }
  void WaitForPaused(int64_t n) {
    WaitUntil([this, n] { return engine_->GetLoad().counts.num_paused == n; }, "the number of paused requests");
  }
  // Waits for the load to be that of an idle engine, and says how it is not.
  void ExpectIdle() {
    ASSERT_TRUE(engine_->WaitUntilIdle(kHangLimit));
    const EngineLoad load = engine_->GetLoad();
    EXPECT_EQ(load.counts.num_running, 0);
    EXPECT_EQ(load.counts.num_waiting, 0);
    EXPECT_EQ(load.counts.waiting_tokens, 0);
    EXPECT_EQ(load.occupancy.num_leases, 0);
    EXPECT_EQ(load.occupancy.unassigned_free_bytes + load.occupancy.unassigned_overhead_bytes,
              load.occupancy.arena_bytes);
  }

  TinyCache tiny_;
  FakeModelRunner runner_;
  FakeClock clock_;
  RecordingSink sink_;
  Gate gate_;
  std::atomic<int> num_failures_{0};
  Engine::Options options_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, RefusesOptionsThatMakeNoSense) {
  options_.max_queue = 0;
  EXPECT_EQ(Engine::Create(tiny_.cache.get(), &runner_, &sink_, options_).status(),
            absl::InvalidArgumentError("max_queue is 0; at least 1 is needed"));
  options_.max_queue = 1;
  options_.scheduler.max_running = 0;
  EXPECT_EQ(Engine::Create(tiny_.cache.get(), &runner_, &sink_, options_).status().code(),
            absl::StatusCode::kInvalidArgument);
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

TEST_F(EngineTest, ADropEndsWithAnEngineThatEnds) {
  MakeEngine();
  bool done = false;
  engine_->DropPrefixes(std::nullopt, [&](const FreedBytes&, const absl::Status&) { done = true; });
  EXPECT_FALSE(done);
  engine_.reset();
  EXPECT_TRUE(done);
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
  engine_->Pause(1);
  engine_->Pause(2);
  gate_.Open();
  WaitForPaused(2);
  EXPECT_EQ(engine_->GetLoad().counts.num_running, 0);
  EXPECT_EQ(engine_->GetLoad().occupancy.num_leases, 0);
  ASSERT_TRUE(engine_->Submit(MakeRequest(3, 5, 5)).ok());
  EXPECT_EQ(sink_.WaitFor(3).finish, FinishReason::kLength) << "others go on";
  engine_->Unpause(1);
  const RequestRecord record = sink_.WaitFor(1);
  EXPECT_EQ(record.tokens, FakeModelRunner::AnswerTo(continued).tokens);
  EXPECT_EQ(record.finish, FinishReason::kLength);
  clock_.Advance(absl::Seconds(30));
  engine_->Unpause(1);  // wakes the engine, whose clock the test moved
  EXPECT_EQ(sink_.WaitFor(2).finish, FinishReason::kUnread);
  ExpectIdle();
}

TEST_F(EngineTest, EndsPausedRequestsWhenItGoes) {
  gate_.Close();
  StartEngine();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 20, 30)).ok());
  gate_.WaitForArrival();
  engine_->Pause(1);
  gate_.Open();
  WaitForPaused(1);
  engine_.reset();
  EXPECT_EQ(sink_.WaitFor(1).finish, FinishReason::kCancelled);
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

TEST_F(EngineTest, AFailedStepEndsItsRequestsAndTheEngineGoesOn) {
  num_failures_ = 2;  // two in a row
  gate_.Close();
  StartEngine();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 10)).ok());
  gate_.WaitForArrival();
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, 5, 10)).ok());
  gate_.Open();
  EXPECT_EQ(sink_.WaitFor(1).finish, FinishReason::kError);
  EXPECT_EQ(sink_.WaitFor(2).finish, FinishReason::kError);
  EXPECT_EQ(sink_.Get(1).error, absl::InternalError("the device is unwell"));
  EXPECT_TRUE(engine_->healthy());
  ExpectIdle();
  EXPECT_EQ(engine_->GetLoad().num_failed_steps, 2);
  ASSERT_TRUE(engine_->Submit(MakeRequest(3, 5, 10)).ok());
  EXPECT_EQ(sink_.WaitFor(3).finish, FinishReason::kLength);
  num_failures_ = 2;  // the count starts again
  ASSERT_TRUE(engine_->Submit(MakeRequest(4, 5, 10)).ok());
  EXPECT_EQ(sink_.WaitFor(4).finish, FinishReason::kError);
  EXPECT_TRUE(engine_->healthy());
}

TEST_F(EngineTest, ThreeFailedStepsInARowAreTheEnd) {
  options_.scheduler.max_running = 1;
  options_.max_queue = 10;
  MakeEngine();
  for (RequestKey key = 1; key <= 5; ++key) ASSERT_TRUE(engine_->Submit(MakeRequest(key, 5, 10)).ok());
  int num_runs = 0;
  runner_.on_run = [&](const StepPlan&) {
    // The last comes while the last step runs.
    if (++num_runs == 3) {
      EXPECT_TRUE(engine_->Submit(MakeRequest(6, 5, 10)).ok());
    }
    return absl::InternalError("the device is unwell");
  };
  engine_->Start();
  for (RequestKey key = 1; key <= 6; ++key) {
    const RequestRecord record = sink_.WaitFor(key);
    EXPECT_EQ(record.finish, FinishReason::kError) << key;
    EXPECT_EQ(record.error.code(), key <= 3 ? absl::StatusCode::kInternal : absl::StatusCode::kUnavailable) << key;
  }
  ExpectIdle();
  EXPECT_FALSE(engine_->healthy());
  EXPECT_EQ(num_runs, 3);
  const absl::Status status = engine_->Submit(MakeRequest(7, 5, 10));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "the device is unwell")) << status;
  engine_->Drain();
  EXPECT_EQ(engine_->Submit(MakeRequest(7, 5, 10)), status);
}

TEST_F(EngineTest, ALostDeviceIsToldAtOnceAndIsTheEnd) {
  int num_runs = 0;
  int num_told = 0;
  options_.on_device_lost = [&](const absl::Status& status) {
    ++num_told;
    EXPECT_EQ(num_runs, 1);
    EXPECT_EQ(status, absl::DataLossError("illegal address"));
  };
  MakeEngine();
  for (RequestKey key = 1; key <= 3; ++key) ASSERT_TRUE(engine_->Submit(MakeRequest(key, 5, 10)).ok());
  runner_.on_run = [&](const StepPlan&) {
    ++num_runs;
    return absl::DataLossError("illegal address");
  };
  engine_->Start();
  for (RequestKey key = 1; key <= 3; ++key) EXPECT_EQ(sink_.WaitFor(key).finish, FinishReason::kError) << key;
  ExpectIdle();
  EXPECT_EQ(num_told, 1);
  EXPECT_EQ(num_runs, 1);
  EXPECT_FALSE(engine_->healthy());
  EXPECT_EQ(engine_->Submit(MakeRequest(4, 5, 10)),
            absl::UnavailableError("the device was lost: DATA_LOSS: illegal address"));
}

// The engine does not wait for the model to fail too.
TEST_F(EngineTest, AnErrorOfTheArenaFailsTheNextStep) {
  FailingStorage storage(tiny_.storage.get());
  const std::unique_ptr<Cache> cache = *Cache::Create(tiny_.cache->plan(), &storage, {});
  FakeModelRunner runner(cache.get());
  int num_runs = 0;
  runner.on_run = [&](const StepPlan&) {
    if (++num_runs == 2) storage.Fail(absl::DataLossError("a copy failed"));
    return absl::OkStatus();
  };
  int num_told = 0;
  options_.on_device_lost = [&](const absl::Status&) { ++num_told; };
  engine_ = *Engine::Create(cache.get(), &runner, &sink_, options_);
  engine_->Start();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 10)).ok());
  EXPECT_EQ(sink_.WaitFor(1).error, absl::DataLossError("a copy failed"));
  engine_.reset();
  EXPECT_EQ(num_runs, 2);
  EXPECT_EQ(num_told, 1);
}

TEST_F(EngineTest, AResultWithoutItsRowsFailsTheStep) {
  class Forgetful : public FakeModelRunner {
   public:
    using FakeModelRunner::FakeModelRunner;
    absl::Status Run(const StepPlan&, StepResult* result) override {
      result->rows.clear();
      return absl::OkStatus();
    }
  };
  Forgetful runner(tiny_.cache.get());
  engine_ = *Engine::Create(tiny_.cache.get(), &runner, &sink_, options_);
  engine_->Start();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 10)).ok());
  EXPECT_EQ(sink_.WaitFor(1).error, absl::InternalError("the model gave 0 results for 1 rows"));
  engine_.reset();
}

TEST_F(EngineTest, DrainingEndsWhatItHasAndTakesNoMore) {
  gate_.Close();
  StartEngine();
  for (RequestKey key = 1; key <= 3; ++key) ASSERT_TRUE(engine_->Submit(MakeRequest(key, 5, 20)).ok());
  engine_->Drain();
  EXPECT_EQ(engine_->Submit(MakeRequest(4, 5, 20)).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(engine_->WaitUntilIdle(absl::ZeroDuration()));
  gate_.Open();
  EXPECT_TRUE(engine_->WaitUntilIdle(absl::InfiniteDuration()));
  for (RequestKey key = 1; key <= 3; ++key) EXPECT_EQ(sink_.Get(key).finish, FinishReason::kLength);
  EXPECT_TRUE(engine_->healthy());
}

TEST_F(EngineTest, DestructionEndsWorkInFlight) {
  gate_.Close();
  StartEngine();
  for (RequestKey key = 1; key <= 3; ++key) ASSERT_TRUE(engine_->Submit(MakeRequest(key, 5, 190)).ok());
  gate_.WaitForArrival();
  ASSERT_TRUE(engine_->Submit(MakeRequest(4, 5, 190)).ok());
  std::thread destroyer([this] { engine_.reset(); });
  gate_.Open();
  destroyer.join();
  for (RequestKey key = 1; key <= 4; ++key) {
    const RequestRecord record = sink_.Get(key);
    EXPECT_EQ(record.num_ends, 1) << key;
    // The four might be done before the destructor is called.
    if (record.finish != FinishReason::kLength) {
      EXPECT_EQ(record.finish, FinishReason::kCancelled) << key;
    }
  }
}

TEST_F(EngineTest, DestructionEndsWhatANeverStartedEngineAccepted) {
  MakeEngine();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 5, 10)).ok());
  EXPECT_FALSE(engine_->WaitUntilIdle(absl::ZeroDuration()));
  engine_.reset();
  EXPECT_EQ(sink_.Get(1).finish, FinishReason::kCancelled);
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
