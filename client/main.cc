// berth-cli: the process around RunCli.
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "client/cli.h"
#include "client/environment.h"
#include "client/interrupt.h"

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  berth::cli::Interrupt interrupt([] { _exit(berth::cli::kExitInterrupted); });
  const berth::cli::SignalWatcher watcher(&interrupt);  // before gRPC starts its threads
  berth::cli::Environment environment = {.in = std::cin,
                                         .out = std::cout,
                                         .err = std::cerr,
                                         .in_is_terminal = isatty(STDIN_FILENO) != 0,
                                         .out_is_terminal = isatty(STDOUT_FILENO) != 0,
                                         .err_is_terminal = isatty(STDERR_FILENO) != 0,
                                         .interrupt = interrupt};
  return berth::cli::RunCli(std::vector<std::string>(argv + 1, argv + argc), environment);
}
