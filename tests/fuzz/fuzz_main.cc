// Completes libFuzzer's arguments, for every target. Here are the limits of one input, and how long a test runs.
//
// New inputs go to the folder BERTH_FUZZ_FOLDER (./dev fuzz), and the input of a failure beside it. In `bazel test` the
// folder is a temporary one, and the input of a failure goes to the test's outputs.
#include <google/protobuf/stubs/logging.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace {

// No input takes nearly as long: this tells a hang from a slow machine.
constexpr char kTimeout[] = "-timeout=60";
constexpr char kMemory[] = "-rss_limit_mb=2048";

constexpr int kTestSeconds = 20;
constexpr int kFullSeconds = 3600;  // with BERTH_FULL

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void AddArguments(std::vector<std::string>* args) {
  args->insert(args->end(), {kTimeout, kMemory});
  const std::string outputs = Variable("TEST_UNDECLARED_OUTPUTS_DIR");
  std::string folder = Variable("BERTH_FUZZ_FOLDER");
  if (folder.empty() && outputs.empty()) return;  // by hand
  const bool full = !Variable("BERTH_FULL").empty();
  std::string seconds = Variable("BERTH_FUZZ_SECONDS");
  if (seconds.empty()) seconds = absl::StrCat(full ? kFullSeconds : kTestSeconds);
  args->push_back(absl::StrCat("-max_total_time=", seconds));
  // A short run begins with the same inputs each time.
  if (folder.empty() && !full) args->push_back("-seed=1");
  args->push_back(absl::StrCat("-artifact_prefix=", folder.empty() ? outputs + "/" : folder + "-"));
  if (folder.empty()) folder = Variable("TEST_TMPDIR") + "/found";
  std::filesystem::create_directories(folder);
  args->push_back(folder);  // libFuzzer writes to the first folder
}

}  // namespace

// libFuzzer calls it before it reads its arguments; those that were given come after these, and win.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static auto* const args = new std::vector<std::string>();
  static auto* const pointers = new std::vector<char*>();
  args->push_back((*argv)[0]);
  AddArguments(args);
  args->insert(args->end(), *argv + 1, *argv + *argc);
  for (std::string& arg : *args) pointers->push_back(arg.data());
  pointers->push_back(nullptr);
  *argc = static_cast<int>(args->size());
  *argv = pointers->data();
  google::protobuf::SetLogHandler(nullptr);  // it would log each input that it refuses
  return 0;
}
