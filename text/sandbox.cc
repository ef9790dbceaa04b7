// Three kinds of processes:
//
//   server --control socket--> forker --fork--> worker 1, worker 2, ...
//      \___________ one socket each ______________/
//
// The server sends the forker one end of a new pair of sockets, and the forker forks a worker that serves it. A fork of
// the server itself would copy the page tables of its whole memory, and its threads' locks as they are. Every process
// ends when its socket is closed, so nothing outlives the server.
#include "text/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

constexpr uint64_t kMaxMessageBytes = uint64_t{256} << 20;
constexpr int kStopIntervalMs = 20;
constexpr int kEndWorkers = SIGUSR2;  // sent by the forker, which ignores it, to its process group

// What comes from a socket besides answers. The first byte of a new worker is kStarted, or what `errno` says of its
// fork.
constexpr char kStarted = 0;
constexpr char kTaken = 1;  // the worker has a whole call

bool SendAll(int socket, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

// OK, or CANCELLED because of `stop`, or RESOURCE_EXHAUSTED because the other side is gone.
absl::Status ReceiveAll(int socket, void* data, size_t size, const StopCheck& stop) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    if (stop) {
      pollfd ready = {.fd = socket, .events = POLLIN, .revents = 0};
      while (poll(&ready, 1, kStopIntervalMs) <= 0) {
        if (stop()) return absl::CancelledError("stopped");
      }
    }
    const ssize_t received = recv(socket, at, size, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return absl::ResourceExhaustedError("ended");
    at += received;
    size -= static_cast<size_t>(received);
  }
  return absl::OkStatus();
}

bool SendText(int socket, const std::string& text) {
  const uint64_t size = text.size();
  return SendAll(socket, &size, sizeof(size)) && SendAll(socket, text.data(), text.size());
}

absl::StatusOr<std::string> ReceiveText(int socket, const StopCheck& stop) {
  uint64_t size = 0;
  if (absl::Status s = ReceiveAll(socket, &size, sizeof(size), stop); !s.ok()) return s;
  if (size > kMaxMessageBytes) return absl::ResourceExhaustedError("too large");
  std::string text(size, '\0');
  if (absl::Status s = ReceiveAll(socket, text.data(), size, stop); !s.ok()) return s;
  return text;
}

bool SendSocket(int control, int socket) {
  char byte = 0;
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char buffer[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = buffer;
  message.msg_controllen = sizeof(buffer);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &socket, sizeof(int));
  return sendmsg(control, &message, MSG_NOSIGNAL) == 1;
}

// -1: the other side is closed.
int ReceiveSocket(int control) {
  char byte = 0;
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char buffer[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = buffer;
  message.msg_controllen = sizeof(buffer);
  ssize_t received = 0;
  do {
    received = recvmsg(control, &message, 0);
  } while (received < 0 && errno == EINTR);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (received != 1 || header == nullptr) return -1;
  int socket = -1;
  std::memcpy(&socket, CMSG_DATA(header), sizeof(int));
  return socket;
}

void LimitMemory(int64_t bytes) {
  long pages = 0;
  if (FILE* const file = std::fopen("/proc/self/statm", "r"); file != nullptr) {
    if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  const rlim_t limit =
      static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + static_cast<rlim_t>(bytes);
  const rlimit address_space = {.rlim_cur = limit, .rlim_max = limit};
  setrlimit(RLIMIT_AS, &address_space);
  const rlimit no_core = {.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // If the whole machine runs out of memory, the kernel takes a worker first.
  if (FILE* const file = std::fopen("/proc/self/oom_score_adj", "w"); file != nullptr) {
    std::fputs("1000", file);
    std::fclose(file);
  }
}

int g_socket = -1;  // of this worker; a handler can reach nothing but globals

// SIGIO comes when the socket changes. The server closes it to give up a call, which ends this worker.
void EndIfAbandoned(int) {
  const int saved_errno = errno;
  pollfd socket = {.fd = g_socket, .events = POLLRDHUP, .revents = 0};
  if (poll(&socket, 1, 0) > 0 && (socket.revents & (POLLRDHUP | POLLHUP)) != 0) _exit(0);
  errno = saved_errno;
}

bool WatchSocket(int socket) {
  g_socket = socket;
  struct sigaction action = {};
  action.sa_handler = EndIfAbandoned;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGIO, &action, nullptr) == 0 && fcntl(socket, F_SETOWN, getpid()) == 0 &&
         fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_ASYNC) == 0;
}

void SetTimer(absl::Duration timeout) {
  itimerval timer = {};
  timer.it_value = absl::ToTimeval(timeout);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

[[noreturn]] void Work(int socket, const Sandbox::Options& options) {
  for (const int restored : {SIGALRM, kEndWorkers}) signal(restored, SIG_DFL);
  LimitMemory(options.memory_bytes);
  if (!WatchSocket(socket) || !SendAll(socket, &kStarted, sizeof(kStarted))) _exit(0);
  while (true) {
    uint64_t count = 0;
    if (!ReceiveAll(socket, &count, sizeof(count), {}).ok()) _exit(0);
    SetTimer(options.timeout);
    std::vector<std::string> arguments;
    for (uint64_t i = 0; i < count; ++i) {
      absl::StatusOr<std::string> argument = ReceiveText(socket, {});
      if (!argument.ok()) _exit(0);
      arguments.push_back(*std::move(argument));
    }
    if (!SendAll(socket, &kTaken, sizeof(kTaken))) _exit(0);
    const std::string answer = options.function(arguments);
    SetTimer(absl::ZeroDuration());
    if (!SendText(socket, answer)) _exit(0);
  }
}

[[noreturn]] void ForkWorkers(int control, const Sandbox::Options& options) {
  setpgid(0, 0);  // Ctrl-C is the server's, which still renders while it drains
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) signal(ignored, SIG_IGN);
  for (const int restored : {SIGSEGV, SIGABRT, SIGBUS}) signal(restored, SIG_DFL);
  signal(SIGCHLD, SIG_IGN);  // no zombies
  // What a worker says when it runs out of memory is not the server's log.
  if (const int null = open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0) {
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
  }
  while (true) {
    const int socket = ReceiveSocket(control);
    if (socket < 0) {  // the server has ended, in whatever way
      kill(0, kEndWorkers);
      while (wait(nullptr) > 0 || errno == EINTR) {
      }
      _exit(0);
    }
    const pid_t pid = fork();
    if (pid == 0) {
      close(control);
      Work(socket, options);
    }
    const char error = static_cast<char>(errno);
    if (pid < 0) SendAll(socket, &error, sizeof(error));
    close(socket);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sandbox>> Sandbox::Start(const Options& options) {
  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot make a socket: ", std::strerror(errno)));
  }
  const pid_t pid = fork();
  if (pid < 0) return absl::UnavailableError(absl::StrCat("cannot start a process: ", std::strerror(errno)));
  if (pid == 0) {
    close(control[0]);
    ForkWorkers(control[1], options);
  }
  close(control[1]);
  return absl::WrapUnique(new Sandbox(options, control[0], pid));
}

Sandbox::~Sandbox() {
  {
    MutexLock lock(&mutex_);
    for (const int worker : idle_) close(worker);
  }
  close(control_);
  waitpid(pid_, nullptr, 0);
}

std::optional<int> Sandbox::TakeIdleWorker() const {
  MutexLock lock(&mutex_);
  if (idle_.empty()) return std::nullopt;
  const int worker = idle_.back();
  idle_.pop_back();
  return worker;
}

absl::StatusOr<int> Sandbox::StartWorker(const StopCheck& stop) const {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot make a socket: ", std::strerror(errno)));
  }
  const bool sent = SendSocket(control_, pair[1]);
  close(pair[1]);
  char started = 0;
  absl::Status status = absl::UnavailableError("the process that starts workers has ended; restart the server");
  if (sent) status = ReceiveAll(pair[0], &started, sizeof(started), stop);
  if (status.ok() && started == kStarted) return pair[0];
  close(pair[0]);
  if (status.ok()) return absl::UnavailableError(absl::StrCat("cannot start a process: ", std::strerror(started)));
  if (absl::IsResourceExhausted(status)) return absl::UnavailableError("a process ended at its start");
  return status;
}

absl::StatusOr<std::string> Sandbox::Ask(int worker, const std::vector<std::string>& arguments,
                                         const StopCheck& stop) const {
  const uint64_t count = arguments.size();
  bool sent = SendAll(worker, &count, sizeof(count));
  for (const std::string& argument : arguments) sent = sent && SendText(worker, argument);
  absl::StatusOr<std::string> answer = absl::AbortedError("ended before it had the call");
  char taken = 0;
  if (sent) {
    const absl::Status status = ReceiveAll(worker, &taken, sizeof(taken), stop);
    if (status.ok()) answer = ReceiveText(worker, stop);
    if (absl::IsCancelled(status)) answer = status;
  }
  if (answer.ok()) {
    MutexLock lock(&mutex_);
    idle_.push_back(worker);
  } else {
    close(worker);  // which ends it, if it still computes
  }
  return answer;
}

absl::StatusOr<std::string> Sandbox::Call(const std::vector<std::string>& arguments, const StopCheck& stop) const {
  if (stop && stop()) return absl::CancelledError("stopped");
  absl::StatusOr<std::string> answer = absl::AbortedError("there is no idle worker");
  if (const std::optional<int> idle = TakeIdleWorker()) answer = Ask(*idle, arguments, stop);
  // The system may have ended an idle worker, as the first one when memory is short. That is not this call's fault.
  if (absl::IsAborted(answer.status())) {
    const absl::StatusOr<int> worker = StartWorker(stop);
    if (!worker.ok()) return worker.status();
    answer = Ask(*worker, arguments, stop);
  }
  if (answer.ok() || absl::IsCancelled(answer.status())) return answer;
  return absl::ResourceExhaustedError(absl::StrCat("needs over ", options_.memory_bytes >> 20, " MiB of memory, over ",
                                                   absl::FormatDuration(options_.timeout),
                                                   ", or nests its values too deep"));
}

}  // namespace berth
