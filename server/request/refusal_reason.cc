#include "server/request/refusal_reason.h"

namespace berth {

std::optional<RefusalReason> ReasonOf(const absl::Status& status) {
  if (const std::optional<Refusal> refusal = RefusalOf(status)) return refusal->reason;
  switch (status.code()) {
    case absl::StatusCode::kOutOfRange:
      return RefusalReason::kTooLong;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
      return RefusalReason::kInvalid;
    case absl::StatusCode::kResourceExhausted:
      return RefusalReason::kOther;
    case absl::StatusCode::kUnavailable:
      return RefusalReason::kDraining;
    default:
      return std::nullopt;
  }
}

}  // namespace berth
