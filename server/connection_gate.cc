#include "server/connection_gate.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/signal_stack.h"
#include "base/steady_clock.h"

namespace berth {
namespace {

// A flood of refused connections costs one look at the open ones in this time.
constexpr absl::Duration kSweepInterval = absl::Milliseconds(100);
// A process without descriptors tries again after this.
constexpr int kRetryMs = 100;

void SetOption(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof(value)); }

// Whose limit a connection counts in. An IPv6 client usually has a network of 64 bits for itself.
std::string AddressOf(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
    return std::string(reinterpret_cast<const char*>(&v4.sin_addr), sizeof(v4.sin_addr));
  }
  if (peer.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(peer);
  const char* const bytes = reinterpret_cast<const char*>(&v6.sin6_addr);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return std::string(bytes + 12, 4);
  return std::string(bytes, 8);
}

void SetPort(int port, sockaddr* address) {
  const auto number = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET) reinterpret_cast<sockaddr_in*>(address)->sin_port = number;
  if (address->sa_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(address)->sin6_port = number;
}

// 0: a Unix socket.
int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  if (address.ss_family == AF_UNIX) return 0;
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

// Returns the listening socket, or -errno. SO_REUSEPORT stays off: a second server on the port is an error, not a
// lottery for each connection.
int Bind(const addrinfo& where, bool dual_stack, absl::Duration user_timeout) {
  const int fd = ::socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  // Accepted connections inherit the next three.
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(absl::ToInt64Milliseconds(user_timeout)));
  if (where.ai_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, dual_stack ? 0 : 1);
  if (::bind(fd, where.ai_addr, where.ai_addrlen) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  ::close(fd);
  return -error;
}

// Binds every address of the host that the machine has. With port 0, all take the port that the first one gets.
absl::StatusOr<std::vector<int>> BindAll(const std::string& host, int port, absl::Duration user_timeout) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) return absl::UnavailableError(::gai_strerror(code));
  const absl::Cleanup free_found = [found] { ::freeaddrinfo(found); };
  std::vector<int> fds;
  int error = 0;
  for (const addrinfo* at = found; at != nullptr && error != EADDRINUSE; at = at->ai_next) {
    if (!fds.empty()) SetPort(PortOf(fds.front()), at->ai_addr);
    const int fd = Bind(*at, host == "::", user_timeout);
    if (fd >= 0) {
      fds.push_back(fd);
    } else {
      error = -fd;
    }
  }
  if (!fds.empty() && error != EADDRINUSE) return fds;
  for (int fd : fds) ::close(fd);
  return absl::UnavailableError(std::strerror(error));
}

// A server that was killed leaves its socket behind, which refuses connections. Another file is not touched.
void RemoveStaleSocket(const sockaddr_un& address) {
  struct stat info = {};
  if (::lstat(address.sun_path, &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const int answers = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  if (answers != 0 && errno == ECONNREFUSED) ::unlink(address.sun_path);
  ::close(fd);
}

absl::StatusOr<std::vector<int>> BindUnix(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return absl::UnavailableError(std::strerror(ENAMETOOLONG));
  std::copy(path.begin(), path.end(), address.sun_path);
  RemoveStaleSocket(address);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 && ::listen(fd, SOMAXCONN) == 0) {
    return std::vector<int>{fd};
  }
  const int error = errno;
  ::close(fd);
  return absl::UnavailableError(std::strerror(error));
}

absl::StatusOr<std::vector<int>> BindAddress(const Address& address, absl::Duration user_timeout) {
  if (address.IsUnix()) return BindUnix(address.socket_path);
  absl::StatusOr<std::vector<int>> fds = absl::UnavailableError("");
  // "Everywhere" includes IPv6 where the machine has it.
  if (address.host == "0.0.0.0") fds = BindAll("::", address.port, user_timeout);
  return fds.ok() ? fds : BindAll(address.host, address.port, user_timeout);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(const Address& address, const Options& options) {
  absl::StatusOr<std::vector<int>> fds = BindAddress(address, options.user_timeout);
  if (!fds.ok()) return fds.status();
  Address bound = address;
  bound.port = PortOf(fds->front());
  return absl::WrapUnique(new ConnectionGate(options, *std::move(fds), std::move(bound)));
}

ConnectionGate::ConnectionGate(const Options& options, std::vector<int> listeners, Address address)
    : options_(options),
      address_(std::move(address)),
      listeners_(std::move(listeners)),
      stop_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void ConnectionGate::Start(OnAccept on_accept) {
  on_accept_ = std::move(on_accept);
  thread_ = std::thread([this] { AcceptUntilStopped(); });
}

void ConnectionGate::Stop() {
  if (stop_fd_ < 0) return;
  ::eventfd_write(stop_fd_, 1);
  if (thread_.joinable()) thread_.join();
  // Before its socket refuses connections: after that the path may be another server's.
  if (address_.IsUnix()) ::unlink(address_.socket_path.c_str());
  for (int fd : listeners_) ::close(fd);
  listeners_.clear();
  ::close(std::exchange(stop_fd_, -1));
}

void ConnectionGate::AcceptUntilStopped() {
  const SignalStack signal_stack;
  std::vector<pollfd> fds = {{stop_fd_, POLLIN, 0}};
  for (int fd : listeners_) fds.push_back({fd, POLLIN, 0});
  while (true) {
    ::poll(fds.data(), fds.size(), -1);
    if (fds[0].revents != 0) return;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      while (Accept(fds[i].fd)) {
      }
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) ::poll(fds.data(), 1, kRetryMs);
    }
  }
}

bool ConnectionGate::Accept(int listener_fd) {
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  const int fd = ::accept4(listener_fd, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return errno == EINTR || errno == ECONNABORTED;
  if (Admit(fd, AddressOf(peer))) {
    on_accept_(listener_fd, fd);
  } else {
    ::close(fd);
  }
  return true;
}

bool ConnectionGate::Admit(int fd, std::string address) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return false;
  const MutexLock lock(&mutex_);
  const absl::Time now = SteadyNow();
  if (open_.size() >= sweep_at_ || (Full(address) && now - last_sweep_ >= kSweepInterval)) {
    Sweep();
    last_sweep_ = now;
  }
  if (Full(address)) {
    ++num_refused_;
    return false;
  }
  ++by_address_[address];
  open_.push_back({fd, info.st_ino, std::move(address)});
  return true;
}

bool ConnectionGate::Full(const std::string& address) const {
  if (options_.max_connections > 0 && static_cast<int64_t>(open_.size()) >= options_.max_connections) return true;
  if (address.empty()) return false;  // a Unix socket, whose clients have no address
  const auto found = by_address_.find(address);
  return options_.max_connections_per_address > 0 && found != by_address_.end() &&
         found->second >= options_.max_connections_per_address;
}

void ConnectionGate::Sweep() {
  const auto closed = [](const Open& one) {
    struct stat info = {};
    return ::fstat(one.fd, &info) != 0 || info.st_ino != one.inode || !S_ISSOCK(info.st_mode);
  };
  const auto end = std::partition(open_.begin(), open_.end(), [&](const Open& one) { return !closed(one); });
  for (auto at = end; at != open_.end(); ++at) {
    if (const auto found = by_address_.find(at->address); --found->second == 0) by_address_.erase(found);
  }
  open_.erase(end, open_.end());
  sweep_at_ = std::max<size_t>(64, 2 * open_.size());
}

ConnectionLoad ConnectionGate::load() {
  const MutexLock lock(&mutex_);
  Sweep();
  return {.open = static_cast<int64_t>(open_.size()), .limit = options_.max_connections, .refused = num_refused_};
}

}  // namespace berth
