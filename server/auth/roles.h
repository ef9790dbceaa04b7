// Which roles may call which method: the one table of the API's permissions. Pure functions; thread-safe.
//
// To add an RPC: add its row to kMethods in roles.cc, and to the table in tests/server/auth/rpc_table_test.cc. A method
// without a row is refused to everybody once authentication is on.
#ifndef BERTH_SERVER_AUTH_ROLES_H_
#define BERTH_SERVER_AUTH_ROLES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "server/admission/identity.h"

namespace berth {

// "user", "operator", "metrics", "gateway" or "peer"; none for anything else.
std::optional<Role> ParseRole(absl::string_view name);

// The names of the bits of Role in `roles`: "user, gateway"; "no role" for 0.
std::string RoleNames(uint32_t roles);

// The roles that may call a method, as bits of Role. 0: the table has no such method. `method` is the path of the call,
// for example "/berth.v1.Control/Abort".
uint32_t RolesOfMethod(absl::string_view method);

}  // namespace berth

#endif  // BERTH_SERVER_AUTH_ROLES_H_
