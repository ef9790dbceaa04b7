#include "server/storage/session_id.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

constexpr size_t kHashDigits = 32;

bool IsHash(absl::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kHashDigits && std::all_of(text.begin(), text.end(), is_digit);
}

}  // namespace

absl::Status CheckSessionId(absl::string_view field, std::string_view id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (id.empty() || id.size() > 128) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", id.size(), " characters are outside [1, 128]"));
  }
  if (id[0] == '.' || !std::all_of(id.begin(), id.end(), allowed)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": only A-Z a-z 0-9 . _ - are allowed, and no dot in front"));
  }
  return absl::OkStatus();
}

std::string TenantHash(absl::string_view tenant) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(tenant.data()), tenant.size(), digest);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), kHashDigits / 2));
}

std::string SessionFileName(const SessionPlace& place) {
  return absl::StrCat(place.id, place.tenant_hash.empty() ? "" : "@", place.tenant_hash, kSessionSuffix);
}

std::optional<SessionPlace> ReadSessionFileName(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, kSessionSuffix)) return std::nullopt;
  SessionPlace place;
  if (const size_t at = name.find('@'); at != absl::string_view::npos) {
    if (!IsHash(name.substr(at + 1))) return std::nullopt;
    place.tenant_hash = std::string(name.substr(at + 1));
    name = name.substr(0, at);
  }
  place.id = std::string(name);
  if (!CheckSessionId("", place.id).ok()) return std::nullopt;
  return place;
}

}  // namespace berth
