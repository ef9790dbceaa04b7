// Who makes a call: the tenant that owns its credential, and the roles of the caller. Plain data.
#ifndef BERTH_SERVER_ADMISSION_IDENTITY_H_
#define BERTH_SERVER_ADMISSION_IDENTITY_H_

#include <cstdint>
#include <string>

namespace berth {

enum class Role : uint32_t {
  kUser = 1,      // makes requests, and acts on the tenant's own ones
  kOperator = 2,  // acts on everything: drains, flushes, aborts others' requests, erases a tenant
  kMetrics = 4,   // reads load and metrics
  kGateway = 8,   // makes requests for the tenants that it names
  kPeer = 16,     // another Berth server
};

struct Identity {
  // False: authentication is off. The caller may do everything, and names its tenant itself (cache_salt).
  bool authenticated = false;
  // Owner of the requests, sessions and cache that the call makes or sees. Meaningless without authentication.
  std::string tenant;
  // Name of the credential, for logs; never the secret.
  std::string credential;
  uint32_t roles = 0;  // bits of Role

  bool Has(Role role) const { return !authenticated || (roles & static_cast<uint32_t>(role)) != 0; }
};

}  // namespace berth

#endif  // BERTH_SERVER_ADMISSION_IDENTITY_H_
