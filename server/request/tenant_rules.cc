#include "server/request/tenant_rules.h"

#include "absl/strings/str_cat.h"
#include "server/process/escape.h"
#include "server/request/field_checks.h"

namespace berth {

absl::StatusOr<std::string> TenantOf(const Identity& identity, absl::string_view field, const std::string& named) {
  if (absl::Status s = CheckCacheSalt(field, named); !s.ok()) return s;
  if (!identity.authenticated) return named;
  if (!named.empty() && named != identity.tenant) {
    return Invalid(field, ": ", Quoted(named), " is not the tenant of the credential, ", Quoted(identity.tenant),
                   "; leave the field out");
  }
  return identity.tenant;
}

absl::StatusOr<std::string> TenantActedOn(const Identity& identity, absl::string_view field, const std::string& named) {
  const bool names_another = !named.empty() && named != identity.tenant;
  if (!identity.authenticated || !names_another || !identity.Has(Role::kOperator)) {
    return TenantOf(identity, field, named);
  }
  if (absl::Status s = CheckCacheSalt(field, named); !s.ok()) return s;
  return named;
}

absl::Status RequireOperator(const Identity& identity, absl::string_view method) {
  if (identity.Has(Role::kOperator)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(method, " requires the role operator"));
}

}  // namespace berth
