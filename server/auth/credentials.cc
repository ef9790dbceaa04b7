#include "server/auth/credentials.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/auth/roles.h"

namespace berth {
namespace {

// Limit of a name in bytes, so that lines of the log stay short.
constexpr size_t kMaxNameBytes = 128;

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\""); }

template <typename... Parts>
absl::Status Bad(const v1::Tenant& tenant, absl::string_view kind, absl::string_view name, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat("tenant ", Quoted(tenant.name()), ": ", kind, " ", Quoted(name), ": ", parts...));
}

absl::Status CheckName(const v1::Tenant& tenant, absl::string_view kind, absl::string_view name) {
  if (name.empty()) return Bad(tenant, kind, name, "name is missing");
  if (name.size() <= kMaxNameBytes) return absl::OkStatus();
  return Bad(tenant, kind, name, "name has ", name.size(), " bytes, over the limit of ", kMaxNameBytes);
}

// Sets `*bad` to a role that does not exist.
template <typename Names>
std::optional<uint32_t> ParseRoles(const Names& names, std::string* bad) {
  if (names.empty()) return static_cast<uint32_t>(Role::kUser);
  uint32_t roles = 0;
  for (const std::string& name : names) {
    const std::optional<Role> role = ParseRole(name);
    if (!role) {
      *bad = name;
      return std::nullopt;
    }
    roles |= static_cast<uint32_t>(*role);
  }
  return roles;
}

bool ParseHash(absl::string_view hex, TokenHash* hash) {
  constexpr absl::string_view kDigits = "0123456789abcdefABCDEF";
  if (hex.size() != 2 * hash->size() || hex.find_first_not_of(kDigits) != absl::string_view::npos) return false;
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), hash->begin());
  return true;
}

template <typename Credential>
absl::Status MakeIdentity(const v1::Tenant& tenant, absl::string_view kind, const Credential& credential,
                          Identity* identity) {
  std::string bad;
  const std::optional<uint32_t> roles = ParseRoles(credential.roles(), &bad);
  if (!roles) {
    return Bad(tenant, kind, credential.name(), "role ", Quoted(bad),
               " is not one of user, operator, metrics, gateway, peer");
  }
  *identity = {.authenticated = true, .tenant = tenant.name(), .credential = credential.name(), .roles = *roles};
  return absl::OkStatus();
}

bool Contains(absl::Span<const absl::string_view> names, absl::string_view name) {
  return !name.empty() && std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TokenHash HashToken(absl::string_view token) {
  TokenHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

absl::Status Credentials::Add(const v1::Tenant& tenant) {
  for (const v1::Token& token : tenant.tokens()) {
    if (absl::Status s = AddToken(tenant, token); !s.ok()) return s;
  }
  for (const v1::ClientCertificate& certificate : tenant.certificates()) {
    if (absl::Status s = AddCertificate(tenant, certificate); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Credentials::AddToken(const v1::Tenant& tenant, const v1::Token& token) {
  constexpr absl::string_view kKind = "token";
  if (absl::Status s = CheckName(tenant, kKind, token.name()); !s.ok()) return s;
  Token added;
  if (!ParseHash(token.sha256(), &added.hash)) {
    // Not its value: somebody may have written the token itself.
    return Bad(tenant, kKind, token.name(), "sha256 is not 64 hexadecimal digits; `berth-cli token` makes one");
  }
  if (absl::Status s = MakeIdentity(tenant, kKind, token, &added.entry.identity); !s.ok()) return s;
  std::string error;
  if (token.has_expires() && !absl::ParseTime(absl::RFC3339_full, token.expires(), &added.entry.expires, &error)) {
    return Bad(tenant, kKind, token.name(), "expires is ", Quoted(token.expires()),
               ", not a time such as 2027-01-31T00:00:00Z");
  }
  if (!names_.insert(token.name()).second) return Bad(tenant, kKind, token.name(), "the name occurs twice");
  for (const Token& other : tokens_) {
    if (other.hash != added.hash) continue;
    return Bad(tenant, kKind, token.name(), "sha256 is also that of ", Quoted(other.entry.identity.credential));
  }
  tokens_.push_back(std::move(added));
  return absl::OkStatus();
}

absl::Status Credentials::AddCertificate(const v1::Tenant& tenant, const v1::ClientCertificate& certificate) {
  constexpr absl::string_view kKind = "certificate";
  if (absl::Status s = CheckName(tenant, kKind, certificate.name()); !s.ok()) return s;
  if (certificate.common_name().empty() == certificate.san().empty()) {
    return Bad(tenant, kKind, certificate.name(), "set one of common_name and san");
  }
  Certificate added = {.common_name = certificate.common_name(), .san = certificate.san(), .entry = {}};
  if (absl::Status s = MakeIdentity(tenant, kKind, certificate, &added.entry.identity); !s.ok()) return s;
  if (!names_.insert(certificate.name()).second) {
    return Bad(tenant, kKind, certificate.name(), "the name occurs twice");
  }
  for (const Certificate& other : certificates_) {
    if (other.common_name != added.common_name || other.san != added.san) continue;
    return Bad(tenant, kKind, certificate.name(), "its subject is also that of ",
               Quoted(other.entry.identity.credential));
  }
  certificates_.push_back(std::move(added));
  return absl::OkStatus();
}

const Credentials::Entry* Credentials::FindToken(absl::string_view token) const {
  const TokenHash hash = HashToken(token);
  const Entry* found = nullptr;
  for (const Token& candidate : tokens_) {
    if (CRYPTO_memcmp(candidate.hash.data(), hash.data(), hash.size()) == 0) found = &candidate.entry;
  }
  return found;
}

const Credentials::Entry* Credentials::FindCertificate(absl::Span<const absl::string_view> common_names,
                                                       absl::Span<const absl::string_view> sans) const {
  for (const Certificate& candidate : certificates_) {
    if (Contains(common_names, candidate.common_name) || Contains(sans, candidate.san)) return &candidate.entry;
  }
  return nullptr;
}

}  // namespace berth
