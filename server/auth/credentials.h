// The tokens and client certificates of one reading of the tenants' file, and whom they belong to.
//
// The file holds hashes of tokens, so who reads it cannot use them. A token is found by its hash, which is compared
// with every token's without an early exit: the time that this takes says nothing about them.
//
// Thread-compatible: constant once it is filled.
#ifndef BERTH_SERVER_AUTH_CREDENTIALS_H_
#define BERTH_SERVER_AUTH_CREDENTIALS_H_

#include <array>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "berth/v1/tenants_file.pb.h"
#include "server/admission/identity.h"

namespace berth {

using TokenHash = std::array<uint8_t, 32>;

// SHA-256.
TokenHash HashToken(absl::string_view token);

class Credentials {
 public:
  struct Entry {
    Identity identity;
    absl::Time expires = absl::InfiniteFuture();
  };

  // Adds those of a tenant. INVALID_ARGUMENT names credential, field and value: a hash, role or time that is malformed,
  // or a name, hash or subject that occurred before.
  absl::Status Add(const v1::Tenant& tenant);

  bool empty() const { return tokens_.empty() && certificates_.empty(); }
  bool has_certificates() const { return !certificates_.empty(); }

  // The token's owner, expired or not; null: it is unknown.
  const Entry* FindToken(absl::string_view token) const;
  // The owner of a certificate with these names; null: none has one of them. If several have, the first of the file.
  const Entry* FindCertificate(absl::Span<const absl::string_view> common_names,
                               absl::Span<const absl::string_view> sans) const;

 private:
  struct Token {
    TokenHash hash;
    Entry entry;
  };
  struct Certificate {
    std::string common_name;  // "": san counts
    std::string san;
    Entry entry;
  };

  absl::Status AddToken(const v1::Tenant& tenant, const v1::Token& token);
  absl::Status AddCertificate(const v1::Tenant& tenant, const v1::ClientCertificate& certificate);

  std::unordered_set<std::string> names_;
  std::vector<Token> tokens_;
  std::vector<Certificate> certificates_;
};

}  // namespace berth

#endif  // BERTH_SERVER_AUTH_CREDENTIALS_H_
