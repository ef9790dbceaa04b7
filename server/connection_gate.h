// Accepts the connections of a port or a Unix socket, and hands them to the server, as many as its limits allow.
//
// gRPC 1.51 accepts whatever comes. So the gate has the listening socket, and gRPC gets connections that are open
// already. Neither side tells the other when a connection ends; the gate sees it by its socket, see `Open`.
//
// Thread-safe.
#ifndef BERTH_SERVER_CONNECTION_GATE_H_
#define BERTH_SERVER_CONNECTION_GATE_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "flags/units.h"

namespace berth {

// Connections of the gRPC port.
struct ConnectionLoad {
  int64_t open = 0;     // gauge
  int64_t limit = 0;    // gauge; 0: none
  int64_t refused = 0;  // over a limit; counted since the start
};

class ConnectionGate {
 public:
  struct Options {
    // Open at once; 0: no limit. An address is one IPv4 address, or one IPv6 network of 64 bits. Clients of a Unix
    // socket have none.
    int64_t max_connections = 4096;
    int64_t max_connections_per_address = 1024;
    // A connection ends when what was sent to it stays unacknowledged for this long; 0: the system's default.
    absl::Duration user_timeout;
  };
  // Takes over `fd`, which is connected, non-blocking and closed on exec.
  using OnAccept = std::function<void(int listener_fd, int fd)>;

  // Binds the address and queues connections until Start. UNAVAILABLE with the system's reason: it cannot be bound. A
  // Unix socket without a listener is replaced.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(const Address& address, const Options& options);
  ~ConnectionGate() { Stop(); }

  // Accepts from now on, on a thread of its own, which calls `on_accept`. Call it once.
  void Start(OnAccept on_accept);
  // Stops listening, and removes a Unix socket. Connections that were handed on stay open.
  void Stop();

  // With the port that it got.
  const Address& address() const { return address_; }
  int port() const { return address_.port; }
  ConnectionLoad load();

 private:
  // A connection that was handed on. Its number may name another file by now: then its inode differs.
  struct Open {
    int fd;
    ino_t inode;
    std::string address;
  };

  ConnectionGate(const Options& options, std::vector<int> listeners, Address address);

  void AcceptUntilStopped();
  // Takes one connection from the listener. False: there is none, or the process has no descriptors left.
  bool Accept(int listener_fd);
  // Counts the connection if the limits allow it.
  bool Admit(int fd, std::string address);
  bool Full(const std::string& address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the connections that were closed.
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const Address address_;
  std::vector<int> listeners_;
  int stop_fd_;  // readable once Stop was called
  OnAccept on_accept_;
  std::thread thread_;

  Mutex mutex_;
  std::vector<Open> open_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, int64_t> by_address_ ABSL_GUARDED_BY(mutex_);
  size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 64;  // with this many open, limits or not
  absl::Time last_sweep_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int64_t num_refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace berth

#endif  // BERTH_SERVER_CONNECTION_GATE_H_
