#include "server/auth/authenticator.h"

#include <grpc/grpc_security_constants.h>

#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/auth/roles.h"

namespace berth {
namespace {

constexpr char kScheme[] = "bearer ";
// Over the limit of a tenant's name in the file, so that no tenant has it.
constexpr size_t kNobodysNameBytes = 1000;

absl::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

grpc::Status Unauthenticated() {
  return {grpc::StatusCode::UNAUTHENTICATED,
          "a credential is needed; the one shown, if any, is malformed, unknown or expired"};
}

grpc::Status Denied(std::string message) { return {grpc::StatusCode::PERMISSION_DENIED, std::move(message)}; }

// The token in the value of "authorization"; none: it is something else.
std::optional<absl::string_view> TokenOf(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return std::nullopt;
  return authorization.substr(sizeof(kScheme) - 1);
}

// Whose the credentials are; null: they are unknown. A token that is shown counts alone.
const Credentials::Entry* FindEntry(const Credentials& credentials, const ShownCredentials& shown) {
  if (shown.authorizations.empty()) return credentials.FindCertificate(shown.common_names, shown.sans);
  if (shown.authorizations.size() > 1) return nullptr;
  const std::optional<absl::string_view> token = TokenOf(shown.authorizations[0]);
  return token ? credentials.FindToken(*token) : nullptr;
}

void AddProperties(const grpc::AuthContext& context, const char* name, std::vector<absl::string_view>* values) {
  for (const grpc::string_ref& value : context.FindPropertyValues(name)) values->push_back(View(value));
}

ShownCredentials ShownBy(const grpc::ServerContextBase& context, const grpc::AuthContext& auth) {
  ShownCredentials shown;
  for (const auto& [name, value] : context.client_metadata()) {
    if (name == "authorization") shown.authorizations.push_back(View(value));
    if (name == "berth-tenant") shown.tenants.push_back(View(value));
  }
  AddProperties(auth, GRPC_X509_CN_PROPERTY_NAME, &shown.common_names);
  AddProperties(auth, GRPC_X509_SAN_PROPERTY_NAME, &shown.sans);
  for (const grpc::string_ref& value : auth.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME)) {
    shown.gateway_listener = View(value) == Authenticator::kGatewayTransport;
  }
  return shown;
}

}  // namespace

Authenticator::Authenticator(Options options) : options_(std::move(options)) { on(); }

bool Authenticator::on() const {
  if (on_.load()) return true;
  if (options_.file->current()->credentials().empty()) return false;
  on_.store(true);
  return true;
}

grpc::Status Authenticator::Admit(absl::string_view method, const ShownCredentials& shown, Identity* caller) const {
  if (shown.in_clear && on()) {
    return {grpc::StatusCode::UNAUTHENTICATED,
            "no credential is accepted over plaintext from the network; the server needs --tls_cert and --tls_key"};
  }
  const std::shared_ptr<const Tenants> tenants = options_.file->current();
  const std::optional<Credentials::Entry> entry = Resolve(*tenants, shown);
  if (!entry || entry->expires <= options_.now()) return Unauthenticated();
  const Identity& identity = entry->identity;
  if (caller != nullptr) *caller = identity;
  const uint32_t roles = RolesOfMethod(method);
  if (identity.authenticated && roles == 0) return {grpc::StatusCode::UNIMPLEMENTED, ""};
  if (!shown.tenants.empty()) {
    if (!identity.authenticated || shown.gateway_listener || !identity.Has(Role::kGateway)) {
      return Denied("berth-tenant: only a credential with the role gateway may name a tenant");
    }
    if (shown.tenants.size() > 1) return Denied("berth-tenant: it occurs twice");
    if (!tenants->HasEntry(std::string(shown.tenants[0]))) {
      return Denied(absl::StrCat("berth-tenant: there is no tenant \"", absl::CHexEscape(shown.tenants[0]), "\""));
    }
  }
  if (!identity.authenticated || (identity.roles & roles) != 0) return grpc::Status::OK;
  return Denied(absl::StrCat(method, " needs one of these roles: ", RoleNames(roles), ". The credential \"",
                             absl::CHexEscape(identity.credential), "\" has: ", RoleNames(identity.roles)));
}

bool Authenticator::AdmitScrape(std::optional<absl::string_view> authorization) const {
  ShownCredentials shown;
  if (authorization) shown.authorizations.push_back(*authorization);
  const std::optional<Credentials::Entry> entry = Resolve(*options_.file->current(), shown);
  if (!entry || entry->expires <= options_.now()) return false;
  return !entry->identity.authenticated || entry->identity.roles == static_cast<uint32_t>(Role::kMetrics);
}

std::optional<Credentials::Entry> Authenticator::Resolve(const Tenants& tenants, const ShownCredentials& shown) const {
  if (shown.gateway_listener) {
    return Credentials::Entry{.identity = {.authenticated = true,
                                           .tenant = options_.gateway_tenant,
                                           .credential = "--gateway_listen",
                                           .roles = static_cast<uint32_t>(Role::kGateway)}};
  }
  if (!on()) return Credentials::Entry();
  const Credentials::Entry* const found = FindEntry(tenants.credentials(), shown);
  if (found == nullptr) return std::nullopt;
  Credentials::Entry entry = *found;
  if (!shown.tenants.empty() && entry.identity.Has(Role::kGateway)) {
    // Admit has refused names that are unknown.
    entry.identity.tenant = std::string(shown.tenants[0]);
  }
  return entry;
}

Identity Authenticator::Of(const grpc::ServerContextBase& context) const {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  const ShownCredentials shown = ShownBy(context, *auth);
  for (const std::shared_ptr<const Tenants>& tenants : {options_.file->current(), options_.file->previous()}) {
    if (std::optional<Credentials::Entry> entry = Resolve(*tenants, shown)) return std::move(entry->identity);
  }
  return {.authenticated = true, .tenant = std::string(kNobodysNameBytes, 'x'), .credential = "removed", .roles = 0};
}

}  // namespace berth
