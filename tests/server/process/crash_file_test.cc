#include "server/process/crash_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace berth {
namespace {

namespace fs = std::filesystem;

class CrashFileTest : public ::testing::TestWithParam<int> {
 protected:
  CrashFileTest() : folder_(std::string(std::getenv("TEST_TMPDIR")) + "/crash") {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(folder_)) names.push_back(file.path().filename());
    return names;
  }

  const std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(Signals, CrashFileTest, ::testing::Values(SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP));

TEST_P(CrashFileTest, AFaultLeavesTheStepsAndEndsTheProcessAsBefore) {
  const pid_t child = ::fork();
  if (child == 0) {
    // Not a sanitizer's.
    for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) ::signal(number, SIG_DFL);
    FlightRecorder recorder;
    recorder.Add({.number = 1});
    recorder.Add({.number = 2});
    if (!CrashFile::Install(folder_, &recorder).ok()) ::_exit(77);
    ::raise(GetParam());
    ::_exit(78);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), GetParam());
  const std::string name = "berth-" + std::to_string(child) + ".steps";
  ASSERT_THAT(Files(), ::testing::ElementsAre(name));
  EXPECT_EQ(fs::file_size(folder_ + "/" + name), 24 + 2 * sizeof(StepRecord));
}

TEST_F(CrashFileTest, IsWrittenOnceAndNotAfterForget) {
  FlightRecorder recorder;
  ASSERT_TRUE(CrashFile::Install(folder_, &recorder).ok());
  CrashFile::Write();
  EXPECT_EQ(Files().size(), 1u);
  fs::remove(folder_ + "/" + Files()[0]);
  CrashFile::Write();
  ASSERT_TRUE(CrashFile::Install(folder_, &recorder).ok());
  CrashFile::Forget();
  CrashFile::Write();
  EXPECT_TRUE(Files().empty());
}

TEST_F(CrashFileTest, NamesAFolderThatIsMissing) {
  FlightRecorder recorder;
  const absl::Status status = CrashFile::Install(folder_ + "/none", &recorder);
  EXPECT_EQ(status.message(), "--crash_dir: " + folder_ + "/none: No such file or directory");
}

}  // namespace
}  // namespace berth
