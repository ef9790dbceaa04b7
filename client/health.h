// A client of grpc.health.v1.Health/Check, without its generated code: Debian's gRPC ships none. Thread-safe.
#ifndef BERTH_CLIENT_HEALTH_H_
#define BERTH_CLIENT_HEALTH_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace berth::cli {

// "SERVING", "NOT_SERVING", "UNKNOWN"; or the code's name when the server does not say, such as "NOT_FOUND". Blocks at
// most `timeout`.
std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                        absl::Duration timeout);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_HEALTH_H_
