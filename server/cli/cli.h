// berth-cli: the table of commands. Tests call RunCli; main.cc adds the process around it.
#ifndef BERTH_SERVER_CLI_CLI_H_
#define BERTH_SERVER_CLI_CLI_H_

#include <string>

#include "absl/types/span.h"
#include "server/cli/environment.h"

namespace berth::cli {

// `args` without the program's name. Returns the exit code.
int RunCli(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_SERVER_CLI_CLI_H_
