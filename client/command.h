// What every command shares: reading its arguments, showing its help, and failing in one line. Thread-compatible.
//
// To add a flag: 1. a field of the command's options; 2. one Add() in its AddTo(); 3. `./dev docs`.
//
// To add a command: 1. `int RunX(absl::Span<const std::string> args, Environment& environment)` in its own files;
// 2. its row in the table in cli.cc.
#ifndef BERTH_CLIENT_COMMAND_H_
#define BERTH_CLIENT_COMMAND_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/environment.h"
#include "flags/flag_set.h"

namespace berth::cli {

struct CommandLine {
  absl::string_view command;  // "chat"
  absl::string_view intro;    // the help above the flags
  size_t max_positional = 0;
};

// Reads `args` into the flags' variables and `*positional`. An exit code when the command ends here: help was asked for
// and shown, or the arguments were refused.
std::optional<int> ParseArguments(const CommandLine& command_line, const FlagSet& flags,
                                  absl::Span<const std::string> args, Environment& environment,
                                  std::vector<std::string>* positional);

// Prints `berth-cli COMMAND: message` and returns `code`.
int Fail(absl::string_view command, absl::string_view message, Environment& environment, int code = kExitFailed);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_COMMAND_H_
