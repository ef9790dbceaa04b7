// Refuses a configuration by which the network could use the server without a credential, or read what it sends. With
// --insecure this is allowed, and logged. Functions; thread-safe.
//
// What only this machine can reach, an address of loopback or a Unix socket, may be plaintext and open.
#ifndef BERTH_SERVER_ACCESS_H_
#define BERTH_SERVER_ACCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/admission/tenants.h"
#include "server/auth/certificate_files.h"
#include "server/auth/credentials.h"
#include "server/config.h"

namespace berth {

// The files that say who may call.
struct AccessFiles {
  std::unique_ptr<TenantsFile> tenants;            // never null
  std::unique_ptr<CertificateFiles> certificates;  // null: there is no TLS
};

// Reads them, and checks the configuration by them. Errors are theirs and CheckAccess's.
absl::StatusOr<AccessFiles> OpenAccessFiles(const Config& config);

// INVALID_ARGUMENT names the flag, and those that would help.
absl::Status CheckAccess(const Config& config, const Credentials& credentials);

// "TLS; callers need a credential of --tenants": of --listen.
std::string DescribeAccess(const Config& config, const Credentials& credentials);

// What --insecure allows: lines for the log, none where nothing is open.
std::vector<std::string> DescribeOpenings(const Config& config, const Credentials& credentials);

// Whether each connection needs a client certificate. With credentials, a call may show a token instead.
inline bool RequiresCertificate(const Config& config, const Credentials& credentials) {
  return !config.tls.client_ca.empty() && credentials.empty();
}

}  // namespace berth

#endif  // BERTH_SERVER_ACCESS_H_
