// The channel to a server, and its errors in one line each. Thread-safe.
#ifndef BERTH_CLIENT_CONNECTION_H_
#define BERTH_CLIENT_CONNECTION_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace berth::cli {

// Plaintext, straight to `server`: proxy variables of the environment are left unread. Connects on first use.
std::shared_ptr<grpc::Channel> Connect(const std::string& server);

// "RESOURCE_EXHAUSTED"
std::string CodeName(grpc::StatusCode code);

// One line: "cannot connect to 127.0.0.1:8600: Connection refused", or "CODE: message", with the delay
// after which the server says that a retry may succeed.
std::string DescribeError(absl::string_view server, const grpc::Status& status);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_CONNECTION_H_
