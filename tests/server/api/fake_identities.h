// An IdentitySource that believes what the call's metadata says: `tenant`, and `role` once for each role. The role
// `none` is that of a listener without authentication.
#ifndef BERTH_TESTS_SERVER_API_FAKE_IDENTITIES_H_
#define BERTH_TESTS_SERVER_API_FAKE_IDENTITIES_H_

#include <string>

#include "server/api/identity.h"

namespace berth {

class FakeIdentities final : public IdentitySource {
 public:
  Identity Of(const grpc::ServerContextBase& context) const override {
    Identity identity = {.authenticated = true};
    for (const auto& [key, value] : context.client_metadata()) {
      const std::string text(value.data(), value.size());
      if (key == "tenant") identity.tenant = text;
      if (key == "tenant") identity.credential = "key of " + text;
      if (key == "role" && text == "user") identity.roles |= static_cast<uint32_t>(Role::kUser);
      if (key == "role" && text == "operator") identity.roles |= static_cast<uint32_t>(Role::kOperator);
      if (key == "role" && text == "none") identity.authenticated = false;
    }
    return identity;
  }
};

// Makes the call that of `tenant`.
inline void CallAs(const std::string& tenant, const std::string& role, grpc::ClientContext* context) {
  context->AddMetadata("tenant", tenant);
  context->AddMetadata("role", role);
}

}  // namespace berth

#endif  // BERTH_TESTS_SERVER_API_FAKE_IDENTITIES_H_
