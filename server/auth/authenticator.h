// Decides which calls are let in, and whose they are.
//
// A caller shows a bearer token ("authorization: Bearer TOKEN") or a client certificate; the tenants' file says which
// tenant and roles it has. A call that shows a token is judged by the token alone. Authentication is on as soon as a
// reading of the file has had a credential, and then stays on: with a file that lost its credentials, every call is
// refused.
//
// What a call shows is read again for each question (Of), not kept: gRPC's AuthContext belongs to the connection, and
// calls of many callers may share one.
//
// Thread-safe.
#ifndef BERTH_SERVER_AUTH_AUTHENTICATOR_H_
#define BERTH_SERVER_AUTH_AUTHENTICATOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/admission/tenants.h"
#include "server/api/identity.h"
#include "server/auth/credentials.h"

namespace berth {

// What a call shows of its caller. The texts must outlive it.
struct ShownCredentials {
  bool gateway_listener = false;                  // it came by --gateway_listen, which needs nothing else
  bool in_clear = false;                          // over the network and not over TLS: others may have read it
  std::vector<absl::string_view> authorizations;  // values of the metadata "authorization"
  std::vector<absl::string_view> tenants;         // values of the metadata "berth-tenant"
  // Names in the client certificate, which is verified.
  std::vector<absl::string_view> common_names;
  std::vector<absl::string_view> sans;
};

class Authenticator final : public IdentitySource {
 public:
  struct Options {
    const TenantsFile* file = nullptr;             // must outlive the authenticator
    std::string gateway_tenant;                    // whose requests come by --gateway_listen
    std::function<absl::Time()> now = &absl::Now;  // the wall clock, by which tokens expire
  };

  // What gRPC calls the transport of the connections of --gateway_listen alone, see server_credentials.h.
  static constexpr char kGatewayTransport[] = "local";

  explicit Authenticator(Options options);

  // Whether callers need a credential.
  bool on() const;

  // Whether the call of `method` ("/berth.v1.Control/Abort") is let in. UNAUTHENTICATED, with one message for a
  // credential that is missing, malformed, unknown or expired, and for any credential that others may have read.
  // PERMISSION_DENIED names method and roles, or the tenant that the caller must not name. UNIMPLEMENTED: there is no
  // such method. `caller` becomes whose call it is, if its credential is known.
  grpc::Status Admit(absl::string_view method, const ShownCredentials& shown, Identity* caller = nullptr) const;

  // Whether the caller may read the metrics over the network. `authorization`: the header's value; none without the
  // header. The port speaks plaintext, so that others may read the token. It must be good for nothing but the metrics,
  // which they read as well: metrics is its only role.
  bool AdmitScrape(std::optional<absl::string_view> authorization) const;

  // See IdentitySource. A credential may be removed from the file after the call was let in. Then the reading before
  // counts. A credential that is gone from that too has no role, and a tenant that no file can have.
  Identity Of(const grpc::ServerContextBase& context) const override;

 private:
  // Whose call it is by one reading of the file, expired or not; none: no credential is known.
  std::optional<Credentials::Entry> Resolve(const Tenants& tenants, const ShownCredentials& shown) const;

  const Options options_;
  mutable std::atomic<bool> on_{false};
};

}  // namespace berth

#endif  // BERTH_SERVER_AUTH_AUTHENTICATOR_H_
