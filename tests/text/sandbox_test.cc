#include "text/sandbox.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/wait_until.h"

// 0: every process may fork.
pid_t g_only_parent_that_forks = 0;

// In place of the C library's.
extern "C" pid_t fork() noexcept {
  if (g_only_parent_that_forks != 0 && getpid() != g_only_parent_that_forks) {
    errno = EAGAIN;
    return -1;
  }
  static const auto real = reinterpret_cast<pid_t (*)()>(dlsym(RTLD_NEXT, "fork"));
  return real();
}

namespace berth {
namespace {

int64_t Nest(int64_t depth) {
  volatile char frame[1024];
  frame[0] = static_cast<char>(depth);
  return depth == 0 ? frame[0] : Nest(depth - 1) + frame[0];
}

std::string Misbehave(const std::vector<std::string>& arguments) {
  const std::string& what = arguments[0];
  if (what == "echo") return arguments[1];
  if (what == "pid") return absl::StrCat(getpid());
  if (what == "abort") std::abort();
  if (what == "exit") _exit(0);
  if (what == "nest") return absl::StrCat(Nest(int64_t{1} << 40));
  if (what == "memory") {
    std::string text = "x";
    while (true) text += text;
  }
  while (true) poll(nullptr, 0, 0);  // spin; the thread sanitizer runs handlers of signals only at calls
}

std::unique_ptr<Sandbox> StartSandbox(absl::Duration timeout = absl::Minutes(5)) {
  auto sandbox = Sandbox::Start({.function = Misbehave, .memory_bytes = 64 << 20, .timeout = timeout});
  EXPECT_TRUE(sandbox.ok()) << sandbox.status();
  return *std::move(sandbox);
}

TEST(SandboxTest, GivesAnswersOfAnySize) {
  const auto sandbox = StartSandbox();
  for (size_t size : {0, 1, 100'000, 5'000'000}) {
    const std::string text(size, 'a');
    EXPECT_EQ(sandbox->Call({"echo", text}, {}).value(), text);
  }
}

TEST(SandboxTest, KeepsAWorkerForTheNextCall) {
  const auto sandbox = StartSandbox();
  const std::string pid = sandbox->Call({"pid"}, {}).value();
  EXPECT_EQ(sandbox->Call({"pid"}, {}).value(), pid);
  EXPECT_NE(pid, absl::StrCat(getpid()));
}

TEST(SandboxTest, TheEndOfAWorkerIsAnErrorOfItsCallOnly) {
  const auto sandbox = StartSandbox();
  for (const char* what : {"abort", "exit", "nest", "memory"}) {
    EXPECT_EQ(sandbox->Call({what}, {}).status().code(), absl::StatusCode::kResourceExhausted) << what;
    EXPECT_EQ(sandbox->Call({"echo", what}, {}).value(), what);
  }
}

TEST(SandboxTest, ATimeoutEndsAWorker) {
  const auto sandbox = StartSandbox(absl::Milliseconds(50));
  EXPECT_EQ(sandbox->Call({"spin"}, {}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(SandboxTest, ACallStopsWhenItIsTold) {
  const auto sandbox = StartSandbox();
  int asked = 0;
  EXPECT_EQ(sandbox->Call({"spin"}, [&asked] { return ++asked == 3; }).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(sandbox->Call({"echo", "on"}, [] { return false; }).value(), "on");
}

// As the kernel does when memory is short.
TEST(SandboxTest, AnIdleWorkerThatWasKilledCostsNoCall) {
  const auto sandbox = StartSandbox();
  const pid_t worker = std::atoi(sandbox->Call({"pid"}, {}).value().c_str());
  ASSERT_EQ(kill(worker, SIGKILL), 0);
  WaitUntil([worker] { return kill(worker, 0) != 0; }, "the worker to end");
  const absl::StatusOr<std::string> next = sandbox->Call({"pid"}, {});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_NE(*next, absl::StrCat(worker));
  EXPECT_EQ(sandbox->Call({"pid"}, {}).value(), *next);
}

// The processes that the thread started and that still run.
std::vector<pid_t> Children(const std::string& thread) {
  std::ifstream file(absl::StrCat("/proc/", thread, "/children"));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

TEST(SandboxTest, AWorkerEndsWithItsCancelledCall) {
  const std::vector<pid_t> before = Children("thread-self");
  const auto sandbox = StartSandbox();
  const std::vector<pid_t> after = Children("thread-self");
  ASSERT_EQ(after.size(), before.size() + 1);
  const pid_t forker = after.back();
  for (int i = 0; i < 20; ++i) {
    int asked = 0;
    EXPECT_TRUE(absl::IsCancelled(sandbox->Call({"spin"}, [&asked] { return ++asked == 2; }).status()));
  }
  WaitUntil([forker] { return Children(absl::StrCat(forker, "/task/", forker)).empty(); }, "the workers to end");
}

TEST(SandboxTest, AProcessThatCannotBeStartedIsNotTheCallersFault) {
  g_only_parent_that_forks = getpid();  // not the process from which workers are forked
  const auto sandbox = StartSandbox();
  g_only_parent_that_forks = 0;
  EXPECT_EQ(sandbox->Call({"pid"}, {}).status(),
            absl::UnavailableError("cannot start a process: Resource temporarily unavailable"));
}

TEST(SandboxTest, SurvivesTheSignalsOfATerminal) {
  const auto sandbox = StartSandbox();
  const pid_t worker = std::atoi(sandbox->Call({"pid"}, {}).value().c_str());
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) kill(worker, signal);
  EXPECT_EQ(sandbox->Call({"pid"}, {}).value(), absl::StrCat(worker));
}

TEST(SandboxTest, ServesManyThreads) {
  const auto sandbox = StartSandbox();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&sandbox, t] {
      for (int i = 0; i < 100; ++i) {
        const std::string text = absl::StrCat(t, " ", i);
        EXPECT_EQ(sandbox->Call({"echo", text}, {}).value(), text);
        if (i % 20 == 0) {
          EXPECT_FALSE(sandbox->Call({"exit"}, {}).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SandboxTest, ItsProcessesEndWithIt) {
  auto sandbox = StartSandbox();
  const pid_t worker = std::atoi(sandbox->Call({"pid"}, {}).value().c_str());
  EXPECT_EQ(kill(worker, 0), 0);
  sandbox.reset();
  WaitUntil([worker] { return kill(worker, 0) != 0; }, "the worker to end");
}

}  // namespace
}  // namespace berth
