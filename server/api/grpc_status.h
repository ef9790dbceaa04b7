// Converts absl's status to gRPC's. Their codes are the same numbers, with one exception: validation uses OUT_OF_RANGE
// for a request that is too long, and the client gets INVALID_ARGUMENT. Thread-safe.
#ifndef BERTH_SERVER_API_GRPC_STATUS_H_
#define BERTH_SERVER_API_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <optional>

#include "absl/status/status.h"
#include "scheduler/refusal.h"

namespace berth {

// A refusal's details (google.rpc.ErrorInfo, and RetryInfo if a retry may succeed) go with the status: gRPC sends them
// as grpc-status-details-bin.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Why the request was refused; none: the status is not that of a refusal.
std::optional<RefusalReason> ReasonOf(const absl::Status& status);

}  // namespace berth

#endif  // BERTH_SERVER_API_GRPC_STATUS_H_
