// `berth-cli load`: the load test.
#ifndef BERTH_SERVER_CLI_LOAD_LOAD_H_
#define BERTH_SERVER_CLI_LOAD_LOAD_H_

#include <string>

#include "absl/types/span.h"
#include "server/cli/environment.h"

namespace berth::cli {

int RunLoad(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_SERVER_CLI_LOAD_LOAD_H_
