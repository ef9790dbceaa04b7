#include "client/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/retry.h"

namespace berth::cli {
namespace {

// gRPC gives no code of its own to a connection that was never made.
bool NeverConnected(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         (absl::StrContains(status.error_message(), "failed to connect to all addresses") ||
          absl::StrContains(status.error_message(), "DNS resolution failed"));
}

}  // namespace

std::shared_ptr<grpc::Channel> Connect(const std::string& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
}

std::string CodeName(grpc::StatusCode code) { return absl::StatusCodeToString(static_cast<absl::StatusCode>(code)); }

std::string DescribeError(absl::string_view server, const grpc::Status& status) {
  const std::string message = status.error_message();  // a copy: gRPC returns one
  if (NeverConnected(status)) {
    const size_t colon = message.rfind(": ");
    const std::string reason = colon == std::string::npos ? message : message.substr(colon + 2);
    return absl::StrCat("cannot connect to ", server, ": ", reason);
  }
  const std::optional<absl::Duration> delay = RetryDelay(status);
  return absl::StrCat(CodeName(status.error_code()), ": ", absl::StrReplaceAll(message, {{"\n", " "}}),
                      delay.has_value() ? absl::StrCat(" (retry in ", absl::FormatDuration(*delay), ")") : "");
}

}  // namespace berth::cli
