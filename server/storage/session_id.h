// The names of sessions and of their files. Functions; thread-safe.
//
// Each tenant has session ids of its own. A file is named ID@HASH.session, where HASH is of the tenant: an id cannot
// hold an @, and the file system shows no tenant. Files of the former layout are named ID.session.
#ifndef BERTH_SERVER_STORAGE_SESSION_ID_H_
#define BERTH_SERVER_STORAGE_SESSION_ID_H_

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth {

inline constexpr absl::string_view kSessionSuffix = ".session";

// A session's id is part of the name of its file: 1 to 128 of A-Z a-z 0-9 . _ -, not beginning with a dot.
// INVALID_ARGUMENT naming the field.
absl::Status CheckSessionId(absl::string_view field, std::string_view id);

// The first 32 hexadecimal digits of a SHA-256. No two tenants with the same hash can be found.
std::string TenantHash(absl::string_view tenant);

// A session among those of all tenants.
struct SessionPlace {
  std::string tenant_hash;  // "": unknown, of a file of the former layout
  std::string id;

  friend auto operator<=>(const SessionPlace&, const SessionPlace&) = default;
};

// The name of its file.
std::string SessionFileName(const SessionPlace& place);
// None: no session has a file of this name.
std::optional<SessionPlace> ReadSessionFileName(absl::string_view name);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_SESSION_ID_H_
