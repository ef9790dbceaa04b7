// Whose tenant a caller acts for, and whether it may act on others (server/admission/identity.h). Functions;
// thread-safe.
#ifndef BERTH_SERVER_REQUEST_TENANT_RULES_H_
#define BERTH_SERVER_REQUEST_TENANT_RULES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/admission/identity.h"

namespace berth {

// The tenant that the call acts for: its credential's, or without authentication the one that it names itself in
// `field`. INVALID_ARGUMENT naming the field: it names another tenant than its own, or one that is malformed.
absl::StatusOr<std::string> TenantOf(const Identity& identity, absl::string_view field, const std::string& named);

// Like TenantOf, for a call that an operator may make for any tenant.
absl::StatusOr<std::string> TenantActedOn(const Identity& identity, absl::string_view field, const std::string& named);

// The tenant whose request ids the call's belong to. Each tenant has its own. Without authentication there is one set
// of ids, "", since Abort names no tenant.
inline std::string IdSpaceOf(const Identity& identity) { return identity.authenticated ? identity.tenant : ""; }

// PERMISSION_DENIED: the call is `method`, for which the role is needed.
absl::Status RequireOperator(const Identity& identity, absl::string_view method);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_TENANT_RULES_H_
