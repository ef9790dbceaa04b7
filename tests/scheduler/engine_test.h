// An engine over a model without weights, whose steps a test may hold or have fail.
#ifndef BERTH_TESTS_SCHEDULER_ENGINE_TEST_H_
#define BERTH_TESTS_SCHEDULER_ENGINE_TEST_H_

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "scheduler/engine.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_model_runner.h"
#include "tests/testing/recording_sink.h"
#include "tests/testing/tiny_cache.h"
#include "tests/testing/wait_until.h"

namespace berth {

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
  // Lets one step through a closed gate.
  void PassOne() {
    MutexLock lock(&mutex_);
    ++allowed_;
    changed_.SignalAll();
  }
  // Called by the model.
  void Pass() {
    MutexLock lock(&mutex_);
    arrived_ = true;
    while (closed_ && allowed_ == 0) changed_.Wait(&mutex_);
    if (closed_) --allowed_;
  }
  // Until the model has come to the gate for the first time.
  void WaitForArrival() {
    const auto arrived = [this] {
      MutexLock lock(&mutex_);
      return arrived_;
    };
    WaitUntil(arrived, "the model to come to the gate");
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool arrived_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t allowed_ ABSL_GUARDED_BY(mutex_) = 0;  // steps, while it is closed
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

}  // namespace berth

#endif  // BERTH_TESTS_SCHEDULER_ENGINE_TEST_H_
