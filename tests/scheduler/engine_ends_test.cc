// Steps that fail, a device that is lost, and an engine that drains or goes.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/scheduler/engine_test.h"
#include "tests/testing/failing_storage.h"
#include "tests/testing/fake_prefix_disk.h"

namespace berth {
namespace {

TEST_F(EngineTest, ADropEndsWithAnEngineThatEnds) {
  MakeEngine();
  bool done = false;
  engine_->DropPrefixes(std::nullopt, [&](const FreedBytes&, const absl::Status&) { done = true; });
  EXPECT_FALSE(done);
  engine_.reset();
  EXPECT_TRUE(done);
}

TEST_F(EngineTest, EndsPausedRequestsWhenItGoes) {
  gate_.Close();
  StartEngine();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, 20, 30)).ok());
  gate_.WaitForArrival();
  engine_->SetPaused(1, true);
  gate_.Open();
  WaitForPaused(1);
  engine_.reset();
  EXPECT_EQ(sink_.WaitFor(1).finish, FinishReason::kCancelled);
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
  EXPECT_TRUE(engine_->WaitUntilIdle(kHangLimit));
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

}  // namespace
}  // namespace berth
