// `berth-cli generate`: streams the continuation of one prompt.
#ifndef BERTH_SERVER_CLI_GENERATE_H_
#define BERTH_SERVER_CLI_GENERATE_H_

#include <string>

#include "absl/types/span.h"
#include "server/cli/environment.h"

namespace berth::cli {

int RunGenerate(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_SERVER_CLI_GENERATE_H_
