#include "server/api/grpc_status.h"

#include <string>

namespace berth {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::StatusCode code =
      status.code() == absl::StatusCode::kOutOfRange ? absl::StatusCode::kInvalidArgument : status.code();
  return grpc::Status(static_cast<grpc::StatusCode>(code), std::string(status.message()));
}

const char* RejectReason(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOutOfRange:
      return "too_long";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
      return "invalid";
    case absl::StatusCode::kResourceExhausted:
      return "queue_full";
    case absl::StatusCode::kUnavailable:
      return "draining";
    default:
      return nullptr;
  }
}

}  // namespace berth
