// Converts absl's status to gRPC's. Their codes are the same numbers, with one exception: validation uses OUT_OF_RANGE
// for a request that is too long, and the client gets INVALID_ARGUMENT. Thread-safe.
#ifndef BERTH_SERVER_API_GRPC_STATUS_H_
#define BERTH_SERVER_API_GRPC_STATUS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace berth {

// A refusal's details (google.rpc.ErrorInfo, and RetryInfo if a retry may succeed) go with the status: gRPC sends them
// as grpc-status-details-bin.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Adds to the trailing metadata of a call that ends with RESOURCE_EXHAUSTED when its client may try again. Clients of
// gRPC with a retry policy obey `grpc-retry-pushback-ms` (gRFC A6). They wait for that time, or do not retry if it is
// -1. Other codes get nothing: such a client tries UNAVAILABLE again by its own policy, maybe at another server. Call
// it once, before the call ends.
void AddRetryAdvice(const absl::Status& status, grpc::ServerContextBase* context);

}  // namespace berth

#endif  // BERTH_SERVER_API_GRPC_STATUS_H_
