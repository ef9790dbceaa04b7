#include "server/process/fault_trace.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "absl/debugging/symbolize.h"
#include "base/signal_stack.h"
#include "server/process/crash_file.h"

namespace berth {
namespace {

// What a process with the trace writes to stderr, and the signal that ends it.
struct End {
  std::string text;
  int signal_number = 0;
};

End EndOf(const std::function<void()>& work) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) ::signal(number, SIG_DFL);  // not a sanitizer's
    absl::InitializeSymbolizer("");
    PrintStackOnFault();
    work();
    ::_exit(78);
  }
  ::close(ends[1]);
  End end;
  char bytes[4096];
  for (ssize_t size = 0; (size = ::read(ends[0], bytes, sizeof(bytes))) > 0;) end.text.append(bytes, size);
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << status << end.text;
  end.signal_number = WTERMSIG(status);
  return end;
}

// Its name is what the tests look for.
__attribute__((noinline)) int RaiseThat(int number) { return ::raise(number) + number; }

// Uses up the stack.
__attribute__((noinline)) int Descend(int depth) {
  volatile char page[4096];
  page[0] = static_cast<char>(depth % 100);
  if (page[0] < 0) return 0;
  return Descend(depth + 1) + page[0];
}

class FaultTraceTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Signals, FaultTraceTest, ::testing::Values(SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP));

TEST_P(FaultTraceTest, AFaultPrintsItsStackAndEndsTheProcessAsBefore) {
  const End end = EndOf([] { std::exit(RaiseThat(GetParam())); });
  EXPECT_EQ(end.signal_number, GetParam());
  EXPECT_NE(end.text.find("RaiseThat"), std::string::npos) << end.text;
}

TEST_F(FaultTraceTest, SoDoesAFaultOfAnotherThread) {
  const End end = EndOf([] { std::thread([] { std::exit(RaiseThat(SIGSEGV)); }).join(); });
  EXPECT_EQ(end.signal_number, SIGSEGV);
  EXPECT_NE(end.text.find("RaiseThat"), std::string::npos) << end.text;
}

TEST_F(FaultTraceTest, SoDoesAThreadThatUsesUpItsStack) {
  const End end = EndOf([] {
    std::thread([] {
      const SignalStack signal_stack;
      std::exit(Descend(0));
    }).join();
  });
  EXPECT_EQ(end.signal_number, SIGSEGV);
  EXPECT_NE(end.text.find("Descend"), std::string::npos) << end.text;
}

TEST_F(FaultTraceTest, TheCrashFileIsWrittenToo) {
  const std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/both";
  std::filesystem::create_directory(folder);
  const End end = EndOf([&] {
    FlightRecorder recorder;
    recorder.Add({.number = 1});
    if (!CrashFile::Install(folder, &recorder).ok()) ::_exit(77);
    std::exit(RaiseThat(SIGSEGV));
  });
  EXPECT_EQ(end.signal_number, SIGSEGV);
  EXPECT_NE(end.text.find("RaiseThat"), std::string::npos) << end.text;
  EXPECT_FALSE(std::filesystem::is_empty(folder));
}

TEST_F(FaultTraceTest, SigtermPrintsNothing) {
  const End end = EndOf([] { ::raise(SIGTERM); });
  EXPECT_EQ(end.signal_number, SIGTERM);
  EXPECT_EQ(end.text, "");
}

}  // namespace
}  // namespace berth
