// The channel to a server, and its errors in one line each. Functions; thread-safe.
#ifndef BERTH_CLIENT_CONNECTION_H_
#define BERTH_CLIENT_CONNECTION_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "flags/flag_set.h"

namespace berth::cli {

// How to reach a server, and what to show it.
struct ConnectionOptions {
  std::string server = "127.0.0.1:8600";  // host:port, or unix:/path
  std::string tls_ca;                     // file of the CAs of the server's certificate, or "system"; "": plaintext
  std::string tls_cert;                   // file of a client certificate; "": none
  std::string tls_key;                    // file of its private key
  std::string token_file;                 // file of a bearer token; "": none

  // Under the heading "Connection".
  void AddTo(FlagSet* flags);
};

// Straight to the server: proxy variables of the environment are left unread. Connects on first use. INVALID_ARGUMENT
// names the flag: a file cannot be read, flags are missing, or others could read the token on its way.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const ConnectionOptions& options);

// "RESOURCE_EXHAUSTED"
std::string CodeName(grpc::StatusCode code);

// One line: "cannot connect to 127.0.0.1:8600: Connection refused", or "CODE: message", with the delay
// after which the server says that a retry may succeed.
std::string DescribeError(absl::string_view server, const grpc::Status& status);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_CONNECTION_H_
