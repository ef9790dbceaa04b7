#include "server/process/process_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

namespace berth {
namespace {

using Event = ProcessSignals::Event;

// Each test has processes of its own, because a signal that came stays come.
class ProcessSignalsDeathTest : public testing::Test {
 protected:
  ProcessSignalsDeathTest() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  static void Keep() {
    if (!ProcessSignals::KeepReloads().ok() || !ProcessSignals::KeepStops().ok()) _exit(1);
  }
  static void Expect(Event event, absl::Duration timeout) {
    if (ProcessSignals::Wait(timeout) != event) _exit(2);
  }
};

TEST_F(ProcessSignalsDeathTest, TheFirstStopIsKeptForWait) {
  for (int signal_number : {SIGTERM, SIGINT}) {
    EXPECT_EXIT(
        {
          Keep();
          Expect(Event::kNone, absl::ZeroDuration());
          raise(signal_number);
          Expect(Event::kStop, absl::InfiniteDuration());
          Expect(Event::kStop, absl::ZeroDuration());
          _exit(42);
        },
        testing::ExitedWithCode(42), "");
  }
}

TEST_F(ProcessSignalsDeathTest, TheSecondStopEndsTheProcess) {
  EXPECT_EXIT(
      {
        Keep();
        raise(SIGINT);
        raise(SIGTERM);
      },
      testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST_F(ProcessSignalsDeathTest, BeforeItIsKeptAStopEndsTheProcess) {
  EXPECT_EXIT(
      {
        if (!ProcessSignals::KeepReloads().ok()) _exit(1);
        raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST_F(ProcessSignalsDeathTest, ReloadsCountAsOneUntilTheyAreTakenAndStopNothing) {
  EXPECT_EXIT(
      {
        if (!ProcessSignals::KeepReloads().ok()) _exit(1);
        // More than a pipe holds, and before anybody waits.
        for (int i = 0; i < 100'000; ++i) raise(SIGHUP);
        if (!ProcessSignals::KeepStops().ok()) _exit(1);
        Expect(Event::kReload, absl::InfiniteDuration());
        Expect(Event::kNone, absl::ZeroDuration());
        raise(SIGHUP);
        Expect(Event::kReload, absl::InfiniteDuration());
        raise(SIGHUP);
        raise(SIGTERM);
        Expect(Event::kStop, absl::InfiniteDuration());
        Expect(Event::kStop, absl::ZeroDuration());
        _exit(42);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(ProcessSignalsDeathTest, OthersAreIgnoredOrKeepTheirDefault) {
  EXPECT_EXIT(
      {
        Keep();
        for (int ignored : {SIGUSR1, SIGUSR2, SIGPIPE, SIGXFSZ}) raise(ignored);
        Expect(Event::kNone, absl::ZeroDuration());
        _exit(42);
      },
      testing::ExitedWithCode(42), "");
  EXPECT_EXIT(
      {
        Keep();
        raise(SIGQUIT);
      },
      testing::KilledBySignal(SIGQUIT), "");
}

}  // namespace
}  // namespace berth
