// `berth-cli status`: the model, its cache groups, the load, the arena's occupancy, and health.
#ifndef BERTH_CLIENT_STATUS_H_
#define BERTH_CLIENT_STATUS_H_

#include <string>

#include "absl/types/span.h"
#include "client/environment.h"

namespace berth::cli {

int RunStatus(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_STATUS_H_
