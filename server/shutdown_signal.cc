#include "server/shutdown_signal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace berth {
namespace {

// A handler can reach nothing but globals. The pipe is written once and never read, so it stays readable.
std::atomic<int> g_num_signals{0};
int g_pipe[2] = {-1, -1};

static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void OnSignal(int signal_number) {
  if (g_num_signals.fetch_add(1) > 0) _exit(128 + signal_number);
  const int saved_errno = errno;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(g_pipe[1], &byte, 1);
  errno = saved_errno;
}

absl::Status Failed(const char* what) {
  return absl::InternalError(absl::StrCat(what, " failed: ", std::strerror(errno)));
}

}  // namespace

absl::Status ShutdownSignal::Install() {
  if (g_pipe[0] < 0 && pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return Failed("pipe2");
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (int signal_number : {SIGTERM, SIGINT}) {
    if (sigaction(signal_number, &action, nullptr) != 0) return Failed("sigaction");
  }
  return absl::OkStatus();
}

bool ShutdownSignal::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    // Never longer than a minute, so that the milliseconds fit poll's int.
    const absl::Duration left = std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Minutes(1));
    pollfd readable = {.fd = g_pipe[0], .events = POLLIN, .revents = 0};
    const int milliseconds = static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    if (poll(&readable, 1, milliseconds) > 0) return true;
    if (absl::Now() >= deadline) return false;
  }
}

}  // namespace berth
