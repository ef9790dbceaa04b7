#include "client/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/retry.h"
#include "flags/units.h"

namespace berth::cli {
namespace {

// gRPC gives no code of its own to a connection that was never made.
bool NeverConnected(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         (absl::StrContains(status.error_message(), "failed to connect to all addresses") ||
          absl::StrContains(status.error_message(), "DNS resolution failed"));
}

// Sends "authorization: Bearer TOKEN" with each call.
class Bearer final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit Bearer(absl::string_view token) : value_(absl::StrCat("Bearer ", token)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status GetMetadata(grpc::string_ref /*service*/, grpc::string_ref /*method*/,
                           const grpc::AuthContext& /*context*/,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace("authorization", value_);
    return grpc::Status::OK;
  }

 private:
  const std::string value_;
};

absl::Status Refuse(absl::string_view flag, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", why));
}

absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file.is_open() && text << file.rdbuf()) return text.str();
  return Refuse(flag, absl::StrCat("cannot read ", path, ", or it is empty"));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeTls(const ConnectionOptions& options) {
  grpc::SslCredentialsOptions tls;
  const std::pair<std::string*, std::pair<absl::string_view, const std::string*>> files[] = {
      {&tls.pem_root_certs, {"--tls_ca", &options.tls_ca}},
      {&tls.pem_cert_chain, {"--tls_cert", &options.tls_cert}},
      {&tls.pem_private_key, {"--tls_key", &options.tls_key}}};
  for (const auto& [text, file] : files) {
    const auto& [flag, path] = file;
    if (path->empty() || (path == &options.tls_ca && *path == "system")) continue;
    absl::StatusOr<std::string> read = ReadFile(flag, *path);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  return grpc::SslCredentials(tls);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> WithToken(
    const ConnectionOptions& options, const std::shared_ptr<grpc::ChannelCredentials>& channel) {
  const absl::StatusOr<std::string> text = ReadFile("--token_file", options.token_file);
  if (!text.ok()) return text.status();
  const absl::string_view token = absl::StripAsciiWhitespace(*text);
  const bool printable = std::all_of(token.begin(), token.end(), absl::ascii_isgraph);
  if (token.empty() || !printable) return Refuse("--token_file", absl::StrCat(options.token_file, " is not a token"));
  return grpc::CompositeChannelCredentials(
      channel, grpc::experimental::MetadataCredentialsFromPlugin(std::make_unique<Bearer>(token), GRPC_SECURITY_NONE));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const ConnectionOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return options.tls_key.empty() ? Refuse("--tls_cert", "requires --tls_key")
                                   : Refuse("--tls_key", "requires --tls_cert");
  }
  if (options.tls_ca.empty() && !options.tls_cert.empty()) return Refuse("--tls_cert", "requires --tls_ca");
  if (!options.tls_ca.empty()) {
    absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> tls = MakeTls(options);
    return !tls.ok() || options.token_file.empty() ? tls : WithToken(options, *tls);
  }
  if (options.token_file.empty()) return grpc::InsecureChannelCredentials();
  const absl::StatusOr<Address> address = ParseAddress(options.server);
  if (!address.ok() || !address->IsLocal()) {
    return Refuse("--token_file",
                  absl::StrCat("others could read the token on its way to ", options.server, "; set --tls_ca"));
  }
  // They also see to it that the connection stays on this machine.
  return WithToken(options, grpc::experimental::LocalCredentials(address->IsUnix() ? UDS : LOCAL_TCP));
}

}  // namespace

void ConnectionOptions::AddTo(FlagSet* flags) {
  flags->AddGroup("Connection");
  flags->Add("server", &server, "address", "Address of the server: host:port, or unix:/path.");
  flags->Add("tls_ca", &tls_ca, "file|system",
             "PEM file of the CAs of the server's certificate; the connection is then TLS. system: this machine's CAs. "
             "Empty: plaintext.");
  flags->Add("tls_cert", &tls_cert, "file", "PEM file of a client certificate. Empty: none.");
  flags->Add("tls_key", &tls_key, "file", "PEM file of the private key of --tls_cert.");
  flags->Add("token_file", &token_file, "file",
             "File of a bearer token. It is sent over TLS, or to this machine. Empty: none.");
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const ConnectionOptions& options) {
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = MakeCredentials(options);
  if (!credentials.ok()) return credentials.status();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(-1);  // the server limits its answers, to more than gRPC's 4 MiB
  // While a call waits, a server that vanished without a word is noticed within these times together.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit: an answer may be long in coming
  return grpc::CreateCustomChannel(options.server, *credentials, arguments);
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
