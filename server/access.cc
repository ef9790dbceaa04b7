#include "server/access.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

template <typename... Parts>
absl::Status Bad(absl::string_view flag, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", parts...));
}

bool HasTls(const Config& config) { return !config.tls.cert.empty(); }

// What is open to the network, and what would close it.
struct Opening {
  const char* flag;
  Address address;
  const char* what;
  const char* remedy;
};

std::vector<Opening> FindOpenings(const Config& config, const Credentials& credentials) {
  std::vector<Opening> openings;
  if (!config.listen.IsLocal() && !HasTls(config)) {
    openings.push_back({"listen", config.listen, "the network can use the server without a credential, and read along",
                        "set --tls_cert and --tls_key, and --tls_client_ca or credentials in --tenants"});
  } else if (!config.listen.IsLocal() && credentials.empty() && config.tls.client_ca.empty()) {
    openings.push_back({"listen", config.listen, "the network can use the server without a credential",
                        "set --tls_client_ca, or credentials in --tenants"});
  }
  if (config.metrics_listen && !config.metrics_listen->IsLocal() && credentials.empty()) {
    openings.push_back({"metrics_listen", *config.metrics_listen, "the network can read the metrics without a token",
                        "set a token with the role metrics in --tenants"});
  }
  return openings;
}

}  // namespace

absl::StatusOr<AccessFiles> OpenAccessFiles(const Config& config) {
  AccessFiles files;
  absl::StatusOr<std::unique_ptr<TenantsFile>> tenants = TenantsFile::Open(config.tenants);
  if (!tenants.ok()) return tenants.status();
  files.tenants = *std::move(tenants);
  if (HasTls(config)) {
    absl::StatusOr<std::unique_ptr<CertificateFiles>> certificates = CertificateFiles::Open(config.tls);
    if (!certificates.ok()) return certificates.status();
    files.certificates = *std::move(certificates);
  }
  if (absl::Status s = CheckAccess(config, files.tenants->current()->credentials()); !s.ok()) return s;
  return files;
}

absl::Status CheckAccess(const Config& config, const Credentials& credentials) {
  if (credentials.has_certificates() && config.tls.client_ca.empty()) {
    return Bad("tenants", config.tenants, " has certificates, which need --tls_client_ca");
  }
  if (!config.listen.IsLocal() && !HasTls(config) && !credentials.empty()) {
    return Bad("tenants", config.tenants, " has tokens, and --listen=", config.listen.ToString(),
               " takes them from the network in plaintext: set --tls_cert and --tls_key, or listen on a loopback "
               "address or a Unix socket");
  }
  if (config.insecure) return absl::OkStatus();
  for (const Opening& opening : FindOpenings(config, credentials)) {
    return Bad(opening.flag, opening.address.ToString(), ": ", opening.what, "; ", opening.remedy,
               ", or set --insecure if this is meant");
  }
  return absl::OkStatus();
}

std::string DescribeAccess(const Config& config, const Credentials& credentials) {
  const char* const transport = HasTls(config) ? "TLS" : "plaintext";
  if (!credentials.empty()) return absl::StrCat(transport, "; callers need a credential of --tenants");
  if (!config.tls.client_ca.empty()) return absl::StrCat(transport, "; clients need a certificate of --tls_client_ca");
  return absl::StrCat(transport, "; callers need no credential");
}

std::vector<std::string> DescribeOpenings(const Config& config, const Credentials& credentials) {
  std::vector<std::string> lines;
  for (const Opening& opening : FindOpenings(config, credentials)) {
    lines.push_back(
        absl::StrCat("--insecure: ", opening.what, ", by --", opening.flag, "=", opening.address.ToString()));
  }
  return lines;
}

}  // namespace berth
