#include "client/cli.h"

#include "absl/strings/str_format.h"
#include "client/chat.h"
#include "client/command.h"
#include "client/generate.h"
#include "client/load/load.h"
#include "client/operate.h"
#include "client/status.h"
#include "client/token.h"
#include "client/trace.h"

namespace berth::cli {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(absl::Span<const std::string> args, Environment& environment);
};

constexpr Command kCommands[] = {
    {"generate", "continue a prompt and stream the text", &RunGenerate},
    {"chat", "send one message, or hold a conversation, through the model's chat template", &RunChat},
    {"status", "show the model, the load, the cache and health", &RunStatus},
    {"trace", "write what the last steps took, for Perfetto", &RunTrace},
    {"drain", "let the server finish its requests and exit", &RunDrain},
    {"flush", "drop cached prefixes", &RunFlush},
    {"erase", "delete all that the server keeps of a tenant", &RunErase},
    {"token", "make a bearer token and its hash", &RunToken},
    {"load", "run a load test: latency, throughput, goodput, verified streams", &RunLoad},
};

void PrintHelp(std::ostream& out) {
  out << "berth-cli COMMAND [flags]: a client of the Berth text-generation server\n\nCommands:\n";
  for (const Command& command : kCommands) out << absl::StreamFormat("  %-10s%s\n", command.name, command.summary);
  out << "\nberth-cli COMMAND --help lists the flags of a command. Every command but token accepts --server=ADDRESS\n"
         "(default 127.0.0.1:8600). Exit codes: 0 success, 1 failure, 2 bad command line, 130 Ctrl-C.\n";
}

}  // namespace

int RunCli(absl::Span<const std::string> args, Environment& environment) {
  if (args.empty()) {
    PrintHelp(environment.err);
    return kExitUsage;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    PrintHelp(environment.out);
    return kExitOk;
  }
  if (args[0] == "--help=markdown") {
    for (const Command& command : kCommands) command.run({"--help=markdown"}, environment);
    return kExitOk;
  }
  for (const Command& command : kCommands) {
    if (args[0] != command.name) continue;
    const int code = command.run(args.subspan(1), environment);
    // Whoever reads a file must not take what is missing for an answer.
    if (environment.out.flush() || code != kExitOk) return code;
    return Fail(command.name, "standard output cannot be written", environment);
  }
  environment.err << "berth-cli: unknown " << (args[0][0] == '-' ? "flag " : "command '") << args[0]
                  << (args[0][0] == '-' ? " before the command" : "'") << "; see berth-cli --help" << std::endl;
  return kExitUsage;
}

}  // namespace berth::cli
