#include "server/shutdown_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

namespace berth {
namespace {

// Each in a process of its own, because a signal that came stays come.
TEST(ShutdownSignalDeathTest, TheFirstSignalIsKeptForWait) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (int signal_number : {SIGTERM, SIGINT}) {
    EXPECT_EXIT(
        {
          if (!ShutdownSignal::Install().ok() || ShutdownSignal::Wait(absl::ZeroDuration())) _exit(1);
          raise(signal_number);
          _exit(ShutdownSignal::Wait(absl::InfiniteDuration()) && ShutdownSignal::Wait(absl::ZeroDuration()) ? 42 : 2);
        },
        testing::ExitedWithCode(42), "");
  }
}

TEST(ShutdownSignalDeathTest, TheSecondSignalEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        if (!ShutdownSignal::Install().ok()) _exit(1);
        raise(SIGINT);
        raise(SIGTERM);
      },
      testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(ShutdownSignalDeathTest, WithoutInstallASignalEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(raise(SIGTERM), testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace berth
