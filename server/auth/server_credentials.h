// What gRPC's listeners ask an Authenticator: credentials of a listener that let each call in, or not, before any
// service sees it. That covers every method, those of health and reflection and unknown ones too. Refusals go to the
// audit log; gRPC does not say here from which address a call comes, so they name the listener instead.
//
// Built from gRPC's C interface. Its C++ InsecureServerCredentials abort when they are given a processor, and
// LocalServerCredentials refuse what is not loopback, which --insecure allows. The calls of --gateway_listen use local
// credentials, so that they can be told from others by their transport, Authenticator::kGatewayTransport.
//
// Thread-safe. What is passed in must outlive the gRPC server.
#ifndef BERTH_SERVER_AUTH_SERVER_CREDENTIALS_H_
#define BERTH_SERVER_AUTH_SERVER_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "flags/units.h"
#include "server/admission/audit.h"
#include "server/auth/authenticator.h"
#include "server/auth/certificate_files.h"

namespace berth {

// Plaintext. `local`: only this machine can reach the listener; on others, no credential is accepted.
std::shared_ptr<grpc::ServerCredentials> PlaintextCredentials(const Authenticator* authenticator, Audit* audit,
                                                              bool local);

// TLS 1.2 or later. Each connection uses the current reading of the files; the listener's connections must all be
// handed over by one thread, as ConnectionGate's. With a CA of clients, a certificate that a client shows must be
// signed by it. Whoever shows none is disconnected if `certificate_required`.
std::shared_ptr<grpc::ServerCredentials> TlsCredentials(const Authenticator* authenticator, Audit* audit,
                                                        const CertificateFiles* files, bool certificate_required);

// The credentials of --gateway_listen: plaintext, and connections of this machine only. A call needs nothing else.
std::shared_ptr<grpc::ServerCredentials> GatewayCredentials(const Authenticator* authenticator, Audit* audit,
                                                            const Address& address);

// The credentials of --health_listen: plaintext. Everybody may call grpc.health.v1.Health; there is nothing else.
std::shared_ptr<grpc::ServerCredentials> HealthCredentials();

}  // namespace berth

#endif  // BERTH_SERVER_AUTH_SERVER_CREDENTIALS_H_
