#include "server/process/watchdog.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "server/process/exit_codes.h"
#include "server/process/logging.h"
#include "server/process/thread_backtrace.h"
#include "tests/testing/wait_until.h"

// The thread whose frames are never found, as where it was interrupted within the loader, whose lock the unwinder
// needs.
std::atomic<pid_t> g_blocked_thread{0};

// In place of the C library's.
extern "C" int backtrace(void** frames, int size) {
  while (gettid() == g_blocked_thread.load()) usleep(1000);
  static const auto real = reinterpret_cast<int (*)(void**, int)>(dlsym(RTLD_NEXT, "backtrace"));
  return real(frames, size);
}

namespace berth {
namespace {

using ::testing::HasSubstr;

// Wake-ups are counted; no time passes.
class WatchdogTest : public testing::Test {
 protected:
  WatchdogTest()
      : watchdog_(
            {.timeout = absl::Seconds(10), .on_hang = [this](const std::string& where) { ends_.push_back(where); }},
            progress_) {}

  void Tick(int64_t count) {
    for (int64_t i = 0; i < count; ++i) watchdog_.Tick();
  }

  std::shared_ptr<StepProgress> progress_ = std::make_shared<StepProgress>();
  std::vector<std::string> ends_;
  Watchdog watchdog_;
};

TEST_F(WatchdogTest, TheLimitIsTheTimeoutInWakeUps) {
  EXPECT_EQ(watchdog_.interval(), absl::Milliseconds(500));
  EXPECT_EQ(watchdog_.limit_ticks(), 20);
  const Watchdog slow({.timeout = absl::Minutes(10)}, progress_);
  EXPECT_EQ(slow.interval(), absl::Seconds(1));
  EXPECT_EQ(slow.limit_ticks(), 600);
}

TEST_F(WatchdogTest, AnIdleEngineNeverHangs) {
  Tick(1000);
  EXPECT_FALSE(watchdog_.hanging());
  EXPECT_TRUE(ends_.empty());
}

TEST_F(WatchdogTest, AStepWithoutProgressHangsAtTheLimitAndEndsTheProcessAtTwice) {
  progress_->SetPlan(/*num_rows=*/3, /*num_tokens=*/70);
  progress_->Enter(StepPhase::kRun);
  Tick(20);  // the first one sees the step
  EXPECT_FALSE(watchdog_.hanging());
  Tick(1);
  EXPECT_TRUE(watchdog_.hanging());
  Tick(19);
  EXPECT_TRUE(ends_.empty());
  Tick(1);
  EXPECT_EQ(ends_, std::vector<std::string>{"a step hangs: phase run, 3 rows, 70 tokens"});
  Tick(100);
  EXPECT_EQ(ends_.size(), 1u);
}

TEST_F(WatchdogTest, EachPhaseIsProgress) {
  for (int i = 0; i < 100; ++i) {
    progress_->Enter(i % 2 == 0 ? StepPhase::kRun : StepPhase::kCommit);
    Tick(20);
    EXPECT_FALSE(watchdog_.hanging());
  }
}

TEST_F(WatchdogTest, AStepThatContinuesHangsNoMore) {
  progress_->Enter(StepPhase::kCopy);
  Tick(39);
  EXPECT_TRUE(watchdog_.hanging());
  progress_->Enter(StepPhase::kCommit);
  Tick(20);
  EXPECT_FALSE(watchdog_.hanging());
  EXPECT_TRUE(ends_.empty());
  progress_->Enter(StepPhase::kIdle);
  Tick(1000);
  EXPECT_FALSE(watchdog_.hanging());
}

// However long the process was stopped, it is one wake-up: nothing but Tick counts.
TEST_F(WatchdogTest, AStoppedProcessIsOneWakeUp) {
  progress_->Enter(StepPhase::kRun);
  Tick(20);
  EXPECT_FALSE(watchdog_.hanging());
  progress_->Enter(StepPhase::kCommit);  // the step continues when the process does
  Tick(1);
  EXPECT_FALSE(watchdog_.hanging());
}

// A thread that waits for good, in a function with a name.
class Sleeper {
 public:
  Sleeper() : thread_([this] { SleepForGood(); }) {
    MutexLock lock(&mutex_);
    while (id_ == 0) changed_.Wait(&mutex_);
  }
  ~Sleeper() {
    {
      MutexLock lock(&mutex_);
      done_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }
  pid_t id() {
    MutexLock lock(&mutex_);
    return id_;
  }

 private:
  [[gnu::noinline]] void SleepForGood() {
    MutexLock lock(&mutex_);
    id_ = gettid();
    changed_.SignalAll();
    while (!done_) changed_.Wait(&mutex_);
  }

  Mutex mutex_;
  CondVar changed_;
  pid_t id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Asks again when a busy machine does not run the thread for as long as BacktraceOf waits.
std::string BacktraceInTheEnd(pid_t thread) {
  std::string text;
  WaitUntil(
      [&] {
        text = BacktraceOf(thread);
        return text != "unknown: the thread does not answer";
      },
      "the thread to answer");
  return text;
}

TEST(ThreadBacktraceTest, NamesTheFunctionsOfAThreadThatWaits) {
  absl::InitializeSymbolizer("watchdog_test");
  Sleeper sleeper;
  EXPECT_THAT(BacktraceInTheEnd(sleeper.id()), HasSubstr("SleepForGood"));
  EXPECT_THAT(BacktraceInTheEnd(sleeper.id()), HasSubstr("SleepForGood"));  // any number of times
}

TEST(ThreadBacktraceTest, SaysThatThereIsNoSuchThread) {
  EXPECT_EQ(BacktraceOf(1), "unknown: there is no such thread");  // another process's
}

TEST(WatchdogDeathTest, EndsTheProcessAndSaysWhere) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        SetUpLogging("info", "text");
        auto progress = std::make_shared<StepProgress>();
        Sleeper sleeper;
        progress->Enter(StepPhase::kRun);
        Watchdog watchdog({.timeout = absl::Milliseconds(100)}, progress);
        watchdog.Start();
        while (true) pause();
      },
      testing::ExitedWithCode(kHangExitCode),
      "a step hangs: phase run.*; no progress for 100ms \\(--step_timeout\\)\n"
      ".*the server ends with exit code 4, because a step hangs: phase run");
}

TEST(WatchdogDeathTest, EndsTheProcessAlsoIfTheHandlerOfTheThreadThatHangsBlocks) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        SetUpLogging("info", "text");
        auto progress = std::make_shared<StepProgress>();
        progress->SetThread();
        g_blocked_thread = gettid();
        progress->Enter(StepPhase::kRun);
        Watchdog watchdog({.timeout = absl::Milliseconds(100)}, progress);
        watchdog.Start();
        while (true) pause();
      },
      testing::ExitedWithCode(kHangExitCode), "the thread does not answer");
}

TEST(ThreadBacktraceTest, AHandlerThatBlocksIsNotWaitedForAgain) {
  Sleeper sleeper;
  EXPECT_THAT(BacktraceInTheEnd(sleeper.id()), HasSubstr("Sleep"));
  g_blocked_thread = sleeper.id();
  EXPECT_EQ(BacktraceOf(sleeper.id()), "unknown: the thread does not answer");
  EXPECT_EQ(BacktraceOf(gettid()), "unknown: the thread does not answer");
  g_blocked_thread = 0;
  EXPECT_THAT(BacktraceInTheEnd(sleeper.id()), HasSubstr("Sleep"));
}

}  // namespace
}  // namespace berth
