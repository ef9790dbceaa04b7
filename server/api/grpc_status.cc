#include "server/api/grpc_status.h"

#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "scheduler/refusal.h"

namespace berth {
namespace {

constexpr char kDomain[] = "berth";
constexpr char kPushback[] = "grpc-retry-pushback-ms";

// Clients take about 8 KiB of trailers, in which a byte may become three and a refusal has the message twice.
constexpr size_t kMaxMessageBytes = 1500;

// The message, or what fits of it up to the end of a character.
std::string Shortened(absl::string_view message) {
  if (message.size() <= kMaxMessageBytes) return std::string(message);
  size_t size = kMaxMessageBytes;
  while (size > 0 && (static_cast<unsigned char>(message[size]) & 0xC0) == 0x80) --size;
  return absl::StrCat(message.substr(0, size), " ... (", message.size() - size, " more bytes)");
}

// The serialised google.rpc.Status.
std::string DetailsOf(const Refusal& refusal, grpc::StatusCode code, const std::string& message) {
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(absl::AsciiStrToUpper(kRefusalReasons[static_cast<size_t>(refusal.reason)]));
  info.set_domain(kDomain);
  auto& metadata = *info.mutable_metadata();
  if (!refusal.setting.empty()) metadata["setting"] = refusal.setting;
  if (!refusal.limit.empty()) metadata["limit"] = refusal.limit;
  if (!refusal.value.empty()) metadata["value"] = refusal.value;
  if (refusal.tenant.has_value()) metadata["tenant"] = *refusal.tenant;
  details.add_details()->PackFrom(info);
  if (refusal.retry_after > absl::ZeroDuration()) {
    google::rpc::RetryInfo retry;
    const timespec delay = absl::ToTimespec(refusal.retry_after);
    retry.mutable_retry_delay()->set_seconds(delay.tv_sec);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(delay.tv_nsec));
    details.add_details()->PackFrom(retry);
  }
  return details.SerializeAsString();
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::StatusCode code =
      status.code() == absl::StatusCode::kOutOfRange ? absl::StatusCode::kInvalidArgument : status.code();
  const auto grpc_code = static_cast<grpc::StatusCode>(code);
  const std::string message = Shortened(status.message());
  if (const std::optional<Refusal> refusal = RefusalOf(status)) {
    return grpc::Status(grpc_code, message, DetailsOf(*refusal, grpc_code, message));
  }
  return grpc::Status(grpc_code, message);
}

void AddRetryAdvice(const absl::Status& status, grpc::ServerContextBase* context) {
  if (!absl::IsResourceExhausted(status)) return;
  const std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal || refusal->retry_after <= absl::ZeroDuration()) return context->AddTrailingMetadata(kPushback, "-1");
  const std::string milliseconds = absl::StrCat(absl::ToInt64Milliseconds(refusal->retry_after));
  context->AddTrailingMetadata(kPushback, milliseconds);
  context->AddTrailingMetadata("retry-after-ms", milliseconds);
}

}  // namespace berth
