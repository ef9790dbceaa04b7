#include "client/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "tests/testing/wait_until.h"

namespace berth::cli {
namespace {

TEST(Interrupt, TheInnermostScopeIsCalled) {
  int otherwise = 0, outer_calls = 0, inner_calls = 0;
  Interrupt interrupt([&] { ++otherwise; });
  interrupt.Fire();
  {
    const Interrupt::Scope outer(&interrupt, [&] { ++outer_calls; });
    {
      const Interrupt::Scope inner(&interrupt, [&] { ++inner_calls; });
      interrupt.Fire();
      EXPECT_TRUE(inner.fired());
    }
    EXPECT_FALSE(outer.fired());
    interrupt.Fire();
    interrupt.Fire();
    EXPECT_TRUE(outer.fired());
  }
  interrupt.Fire();
  EXPECT_EQ(otherwise, 2);
  EXPECT_EQ(outer_calls, 2);
  EXPECT_EQ(inner_calls, 1);
}

TEST(SignalWatcher, TurnsSigintIntoFire) {
  Interrupt interrupt([] {});
  const SignalWatcher watcher(&interrupt);
  std::atomic<int> calls = 0;
  const Interrupt::Scope scope(&interrupt, [&] { ++calls; });
  kill(getpid(), SIGINT);
  WaitUntil([&] { return calls == 1; }, "SIGINT to fire");
  EXPECT_TRUE(scope.fired());
}

TEST(SignalWatcher, EndsWithoutFiring) {
  int calls = 0;
  Interrupt interrupt([&] { ++calls; });
  { const SignalWatcher watcher(&interrupt); }
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace berth::cli
