// berth-cli: the table of commands. Tests call RunCli; main.cc adds the process around it.
#ifndef BERTH_CLIENT_CLI_H_
#define BERTH_CLIENT_CLI_H_

#include <string>

#include "absl/types/span.h"
#include "client/environment.h"

namespace berth::cli {

// `args` without the program's name. Returns the exit code.
int RunCli(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_CLI_H_
