// Where gRPC listens: --listen, --gateway_listen and --health_listen. Each has its own ConnectionGate, so that a flood
// of one leaves the others room, and its own credentials (server/auth/server_credentials.h).
//
// Thread-compatible; load() is thread-safe.
#ifndef BERTH_SERVER_LISTENERS_H_
#define BERTH_SERVER_LISTENERS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "flags/units.h"
#include "server/access.h"
#include "server/admission/audit.h"
#include "server/auth/authenticator.h"
#include "server/config.h"
#include "server/connection_gate.h"

namespace berth {

class Listeners {
 public:
  struct Options {
    const Authenticator* authenticator = nullptr;
    Audit* audit = nullptr;
    const AccessFiles* files = nullptr;
    absl::Duration user_timeout;  // see ConnectionGate::Options
  };

  ~Listeners() { Stop(); }

  // Binds the addresses and adds them to the builder. UNAVAILABLE names flag, address and reason. What Options points
  // to must outlive the gRPC server.
  absl::Status Bind(const Config& config, const Options& options, grpc::ServerBuilder* builder);
  // Accepts connections, for the server that the builder has started.
  void Start();
  // Stops listening. Connections stay open.
  void Stop();

  // The address with the port that it got; port 0 where there is no such listener.
  Address listen() const { return AddressOf(listen_); }
  Address gateway() const { return AddressOf(gateway_); }
  Address health() const { return AddressOf(health_); }
  // Adds up all listeners. The limit is that of each.
  ConnectionLoad load() const;

 private:
  struct Listener {
    std::unique_ptr<ConnectionGate> gate;  // null: there is none
    std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  };

  static Address AddressOf(const Listener& listener) {
    return listener.gate == nullptr ? Address() : listener.gate->address();
  }

  Listener listen_;
  Listener gateway_;
  Listener health_;
};

}  // namespace berth

#endif  // BERTH_SERVER_LISTENERS_H_
