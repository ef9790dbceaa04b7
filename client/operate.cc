#include "client/operate.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "berth/v1/control.grpc.pb.h"
#include "client/command.h"
#include "client/connection.h"
#include "flags/units.h"

namespace berth::cli {
namespace {

constexpr char kDrainIntro[] = R"(berth-cli drain [flags]

Drains the server as SIGTERM does: it refuses new requests, finishes those under way, and exits. Needs the
role operator where authentication is on.
)";
constexpr char kFlushIntro[] = R"(berth-cli flush [flags]

Drops cached prefixes: in the arena, in host memory and on the disk. Needs the role operator where
authentication is on.
)";
constexpr char kEraseIntro[] = R"(berth-cli erase --tenant=NAME [flags]

Ends the requests of a tenant, and deletes its sessions and its cached prefixes. Remove its credentials
first: it may send new requests afterwards. Needs the role operator where authentication is on.
)";

// Erasing waits for up to 30 s three times.
constexpr std::chrono::seconds kCallTimeout(120);

struct OperateOptions {
  ConnectionOptions connection;
  std::optional<std::string> tenant;

  void AddTenantTo(absl::string_view help, FlagSet* flags) {
    flags->AddGroup("Tenant");
    flags->Add("tenant", &tenant, "name", help);
  }
};

// Calls a method of Control and prints what `describe` says of the response.
template <typename Method, typename Request, typename Response>
int Call(absl::string_view command, const OperateOptions& options, Method method, const Request& request,
         std::string (*describe)(const Response&), Environment& environment) {
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Connect(options.connection);
  if (!channel.ok()) return Fail(command, channel.status().message(), environment, kExitUsage);
  const std::unique_ptr<v1::Control::Stub> stub = v1::Control::NewStub(*channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  Response response;
  const grpc::Status status = (stub.get()->*method)(&context, request, &response);
  if (!status.ok()) return Fail(command, DescribeError(options.connection.server, status), environment);
  environment.out << describe(response) << std::endl;
  return kExitOk;
}

template <typename Response>
std::string DescribeFreed(const Response& response) {
  return absl::StrCat("prefixes dropped: ", FormatByteSize(response.arena_bytes()), " of the arena, ",
                      FormatByteSize(response.host_tier_bytes()), " of host memory, ",
                      FormatByteSize(response.disk_tier_bytes()), " of files");
}

std::string DescribeDrain(const v1::DrainResponse& response) {
  return absl::StrCat("the server drains: ", response.requests(), " requests have ", response.grace_seconds(),
                      " s to end");
}

std::string DescribeFlush(const v1::FlushCacheResponse& response) { return DescribeFreed(response); }

std::string DescribeErase(const v1::EraseTenantResponse& response) {
  return absl::StrCat("requests ended: ", response.requests(), "\nsessions deleted: ", response.sessions(), ", ",
                      FormatByteSize(response.session_bytes()), "\n", DescribeFreed(response));
}

}  // namespace

int RunDrain(absl::Span<const std::string> args, Environment& environment) {
  OperateOptions options;
  FlagSet flags;
  options.connection.AddTo(&flags);
  const CommandLine command_line = {.command = "drain", .intro = kDrainIntro};
  if (const auto code = ParseArguments(command_line, flags, args, environment, nullptr)) return *code;
  return Call("drain", options, &v1::Control::Stub::Drain, v1::DrainRequest(), &DescribeDrain, environment);
}

int RunFlush(absl::Span<const std::string> args, Environment& environment) {
  OperateOptions options;
  FlagSet flags;
  options.AddTenantTo("Drop the prefixes of this tenant only.", &flags);
  options.connection.AddTo(&flags);
  const CommandLine command_line = {.command = "flush", .intro = kFlushIntro};
  if (const auto code = ParseArguments(command_line, flags, args, environment, nullptr)) return *code;
  v1::FlushCacheRequest request;
  if (options.tenant) request.set_tenant(*options.tenant);
  return Call("flush", options, &v1::Control::Stub::FlushCache, request, &DescribeFlush, environment);
}

int RunErase(absl::Span<const std::string> args, Environment& environment) {
  OperateOptions options;
  FlagSet flags;
  options.AddTenantTo("Tenant to erase. Must be set.", &flags);
  options.connection.AddTo(&flags);
  const CommandLine command_line = {.command = "erase", .intro = kEraseIntro};
  if (const auto code = ParseArguments(command_line, flags, args, environment, nullptr)) return *code;
  if (!options.tenant) return Fail("erase", "--tenant must be set", environment, kExitUsage);
  v1::EraseTenantRequest request;
  request.set_tenant(*options.tenant);
  return Call("erase", options, &v1::Control::Stub::EraseTenant, request, &DescribeErase, environment);
}

}  // namespace berth::cli
