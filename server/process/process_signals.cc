#include "server/process/process_signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/steady_clock.h"

namespace berth {
namespace {

// A handler can reach nothing but globals. It counts first and writes to the pipe then, so a Wait that has read the
// byte sees the count.
std::atomic<int> g_num_stops{0};
std::atomic<int> g_num_reloads{0};
int g_pipe[2] = {-1, -1};

static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void WakeWait() {
  const int saved_errno = errno;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(g_pipe[1], &byte, 1);  // a full pipe wakes it too
  errno = saved_errno;
}

void OnStop(int signal_number) {
  if (g_num_stops.fetch_add(1) > 0) _exit(128 + signal_number);
  WakeWait();
}

void OnReload(int) {
  g_num_reloads.fetch_add(1);
  WakeWait();
}

absl::Status Failed(const char* what) {
  return absl::InternalError(absl::StrCat(what, " failed: ", std::strerror(errno)));
}

absl::Status Handle(int signal_number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(signal_number, &action, nullptr) == 0 ? absl::OkStatus() : Failed("sigaction");
}

}  // namespace

absl::Status ProcessSignals::KeepReloads() {
  if (g_pipe[0] < 0 && pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return Failed("pipe2");
  for (int ignored : {SIGUSR1, SIGUSR2, SIGPIPE, SIGXFSZ}) {
    if (absl::Status s = Handle(ignored, SIG_IGN); !s.ok()) return s;
  }
  return Handle(SIGHUP, OnReload);
}

absl::Status ProcessSignals::KeepStops() {
  for (int stop : {SIGTERM, SIGINT}) {
    if (absl::Status s = Handle(stop, OnStop); !s.ok()) return s;
  }
  return absl::OkStatus();
}

ProcessSignals::Event ProcessSignals::Wait(absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    if (g_num_stops.load() > 0) return Event::kStop;
    if (g_num_reloads.exchange(0) > 0) return Event::kReload;
    // Never longer than a minute, so that the milliseconds fit poll's int.
    const absl::Duration left = std::clamp(deadline - SteadyNow(), absl::ZeroDuration(), absl::Minutes(1));
    pollfd readable = {.fd = g_pipe[0], .events = POLLIN, .revents = 0};
    const int milliseconds = static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    if (poll(&readable, 1, milliseconds) > 0) {
      char bytes[64];
      while (read(g_pipe[0], bytes, sizeof(bytes)) > 0) continue;
    } else if (SteadyNow() >= deadline) {
      return Event::kNone;
    }
  }
}

}  // namespace berth
