// Converts between absl's status and gRPC's. Their codes are the same numbers, with one exception: validation uses
// OUT_OF_RANGE for a request that is too long, and the client gets INVALID_ARGUMENT. Thread-safe.
#ifndef BERTH_SERVER_API_GRPC_STATUS_H_
#define BERTH_SERVER_API_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace berth {

grpc::Status ToGrpcStatus(const absl::Status& status);

// The reason label of a refused request: "too_long", "invalid", "queue_full", "draining"; null for others.
const char* RejectReason(const absl::Status& status);

}  // namespace berth

#endif  // BERTH_SERVER_API_GRPC_STATUS_H_
