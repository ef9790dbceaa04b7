#include "text/sandbox.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/wait_until.h"

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
  while (true) {  // spin
  }
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
