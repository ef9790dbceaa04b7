#include "server/process/crash_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

std::atomic<const FlightRecorder*> g_recorder{nullptr};
char g_path[4096];
std::array<char, 64 << 10> g_stack;  // a thread whose stack is used up has none for the handler

// What a signal did before is kept for it: sanitizers and core dumps still see it.
struct Fault {
  int number;
  struct sigaction before = {};
};
std::array<Fault, 6> g_faults = {{{SIGSEGV}, {SIGBUS}, {SIGILL}, {SIGFPE}, {SIGTRAP}, {SIGABRT}}};

void OnFault(int number, siginfo_t* info, void* context) {
  CrashFile::Write();
  for (const Fault& fault : g_faults) {
    if (fault.number != number) continue;
    ::sigaction(number, &fault.before, nullptr);
    // Called, so that it learns where the fault was. A handler that returns is called again, as for any fault.
    if ((fault.before.sa_flags & SA_SIGINFO) != 0) fault.before.sa_sigaction(number, info, context);
  }
  ::raise(number);
}

}  // namespace

absl::Status CrashFile::Install(const std::string& folder, const FlightRecorder* recorder) {
  const std::string path = absl::StrCat(folder, "/berth-", ::getpid(), ".steps");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("--crash_dir: ", folder, ": ", std::strerror(errno)));
  }
  if (path.size() >= sizeof(g_path)) {
    return absl::FailedPreconditionError(absl::StrCat("--crash_dir: ", folder, ": the name is too long"));
  }
  std::memcpy(g_path, path.c_str(), path.size() + 1);
  g_recorder.store(recorder);
  stack_t stack = {};
  stack.ss_sp = g_stack.data();
  stack.ss_size = g_stack.size();
  ::sigaltstack(&stack, nullptr);
  for (Fault& fault : g_faults) {
    struct sigaction action = {};
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_ONSTACK | SA_NODEFER | SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    if (::sigaction(fault.number, &action, &fault.before) != 0) {
      return absl::InternalError(absl::StrCat("sigaction failed: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

void CrashFile::Forget() { g_recorder.store(nullptr); }

void CrashFile::Write() {
  const FlightRecorder* const recorder = g_recorder.exchange(nullptr);
  if (recorder == nullptr) return;
  const int fd = ::open(g_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  recorder->WriteTo(fd);
  ::close(fd);
}

}  // namespace berth
