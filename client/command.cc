#include "client/command.h"

#include "absl/strings/str_cat.h"

namespace berth::cli {

std::optional<int> ParseArguments(const CommandLine& command_line, const FlagSet& flags,
                                  absl::Span<const std::string> args, Environment& environment,
                                  std::vector<std::string>* positional) {
  auto parsed = flags.Parse(args);
  if (parsed.ok() && parsed->markdown) {
    environment.out << "\n## berth-cli " << command_line.command << "\n\n```text\n"
                    << command_line.intro << "```\n"
                    << flags.Markdown();
    return kExitOk;
  }
  if (parsed.ok() && parsed->help) {
    environment.out << command_line.intro << "\n" << flags.Help();
    return kExitOk;
  }
  std::string error;
  if (!parsed.ok()) {
    error = std::string(parsed.status().message());
  } else if (parsed->positional.size() > command_line.max_positional) {
    error = absl::StrCat("unexpected argument '", parsed->positional[command_line.max_positional], "'");
  }
  if (!error.empty()) {
    return Fail(command_line.command, absl::StrCat(error, "; see berth-cli ", command_line.command, " --help"),
                environment, kExitUsage);
  }
  if (positional != nullptr) *positional = std::move(parsed->positional);
  return std::nullopt;
}

int Fail(absl::string_view command, absl::string_view message, Environment& environment, int code) {
  environment.err << "berth-cli " << command << ": " << message << std::endl;
  return code;
}

}  // namespace berth::cli
