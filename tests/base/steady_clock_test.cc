// Sets the wall clock of this process back and forward, by a clock_gettime of its own, and finds nothing changed.
#include "base/steady_clock.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/engine.h"
#include "tests/testing/fake_model_runner.h"
#include "tests/testing/recording_sink.h"
#include "tests/testing/tiny_cache.h"

namespace {
std::atomic<int64_t> g_wall_offset_seconds{0};
}  // namespace

// In place of the C library's, for this program and the libraries it loads.
extern "C" int clock_gettime(clockid_t clock, timespec* out) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, out));
  if (clock == CLOCK_REALTIME) out->tv_sec += g_wall_offset_seconds.load();
  return result;
}

namespace berth {
namespace {

class SteadyClockTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { SteadyNow(); }
  void TearDown() override { g_wall_offset_seconds = 0; }
  // Moves the wall clock by an hour, back or forward.
  static void Jump() {
    const absl::Time before = absl::Now();
    g_wall_offset_seconds += GetParam();
    ASSERT_GT(absl::AbsDuration(absl::Now() - before), absl::Minutes(50));
  }
};

INSTANTIATE_TEST_SUITE_P(BackAndForward, SteadyClockTest, testing::Values(-3600, 3600));

TEST_P(SteadyClockTest, DoesNotJump) {
  const absl::Time before = SteadyNow();
  Jump();
  EXPECT_GE(SteadyNow(), before);
  EXPECT_LT(SteadyNow() - before, absl::Minutes(30));
}

// The engine's own clock, as in the server.
TEST_P(SteadyClockTest, DeadlinesAndMeasuredTimesOfTheEngineStand) {
  TinyCache tiny({StaticLayer()}, /*arena_size=*/400);
  FakeModelRunner runner(tiny.cache.get());
  RecordingSink sink;
  int num_steps = 0;
  runner.on_run = [&](const StepPlan&) {
    if (++num_steps == 5) Jump();
    return absl::OkStatus();
  };
  Engine::Options options;
  options.scheduler = {.max_running = 2, .max_step_tokens = 16, .prefill_chunk_tokens = 8, .max_sequence_tokens = 200};
  auto engine = Engine::Create(tiny.cache.get(), &runner, &sink, std::move(options));
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->Start();
  Request request;
  request.key = 1;
  request.prompt = {1, 2, 3};
  request.max_tokens = 20;
  request.arrival = SteadyNow();
  request.deadline = SteadyNow() + absl::Minutes(30);
  ASSERT_TRUE((*engine)->Submit(request).ok());
  const RequestRecord record = sink.WaitFor(1);
  EXPECT_EQ(record.finish, FinishReason::kLength);
  EXPECT_EQ(record.tokens.size(), 20u);
  for (const StepStats& step : sink.steps()) {
    EXPECT_GE(step.duration, absl::ZeroDuration());
    EXPECT_LT(step.duration, absl::Minutes(30));
  }
  // A deadline still ends a request: of the time that passes, not of the wall clock.
  request.key = 2;
  request.deadline = SteadyNow();
  ASSERT_TRUE((*engine)->Submit(request).ok());
  EXPECT_EQ(sink.WaitFor(2).finish, FinishReason::kDeadline);
}

}  // namespace
}  // namespace berth
