// `berth-cli status`: the model, its cache groups, the load, the arena's occupancy, and health.
#ifndef BERTH_SERVER_CLI_STATUS_H_
#define BERTH_SERVER_CLI_STATUS_H_

#include <string>

#include "absl/types/span.h"
#include "server/cli/environment.h"

namespace berth::cli {

int RunStatus(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_SERVER_CLI_STATUS_H_
