#include "server/listeners.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/auth/server_credentials.h"

namespace berth {

absl::Status Listeners::Bind(const Config& config, const Options& options, grpc::ServerBuilder* builder) {
  const auto bind = [&](absl::string_view flag, const Address& address, Listener* listener,
                        std::shared_ptr<grpc::ServerCredentials> credentials) {
    ConnectionGate::Options limits = config.connections;
    limits.user_timeout = options.user_timeout;
    absl::StatusOr<std::unique_ptr<ConnectionGate>> gate = ConnectionGate::Listen(address, limits);
    if (!gate.ok()) {
      return absl::UnavailableError(
          absl::StrCat(flag, ": cannot listen on ", address.ToString(), ": ", gate.status().message()));
    }
    listener->gate = *std::move(gate);
    using From = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    listener->acceptor = builder->experimental().AddExternalConnectionAcceptor(From::FROM_FD, std::move(credentials));
    return absl::OkStatus();
  };
  const CertificateFiles* const certificates = options.files->certificates.get();
  const bool required = RequiresCertificate(config, options.files->tenants->current()->credentials());
  std::shared_ptr<grpc::ServerCredentials> credentials =
      certificates == nullptr ? PlaintextCredentials(options.authenticator, options.audit, config.listen.IsLocal())
                              : TlsCredentials(options.authenticator, options.audit, certificates, required);
  absl::Status status = bind("--listen", config.listen, &listen_, std::move(credentials));
  if (status.ok() && config.gateway_listen) {
    status = bind("--gateway_listen", *config.gateway_listen, &gateway_,
                  GatewayCredentials(options.authenticator, options.audit, *config.gateway_listen));
  }
  if (status.ok() && config.health_listen) {
    status = bind("--health_listen", *config.health_listen, &health_, HealthCredentials());
  }
  return status;
}

void Listeners::Start() {
  for (const Listener* listener : {&listen_, &gateway_, &health_}) {
    if (listener->gate == nullptr) continue;
    listener->gate->Start([acceptor = listener->acceptor](int listener_fd, int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.listener_fd = listener_fd;
      connection.fd = fd;
      acceptor->HandleNewConnection(&connection);
    });
  }
}

void Listeners::Stop() {
  for (const Listener* listener : {&listen_, &gateway_, &health_}) {
    if (listener->gate != nullptr) listener->gate->Stop();
  }
}

ConnectionLoad Listeners::load() const {
  ConnectionLoad all;
  for (const Listener* listener : {&listen_, &gateway_, &health_}) {
    if (listener->gate == nullptr) continue;
    const ConnectionLoad one = listener->gate->load();
    all.open += one.open;
    all.refused += one.refused;
    all.limit = one.limit;
  }
  return all;
}

}  // namespace berth
