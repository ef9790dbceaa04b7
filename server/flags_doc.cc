// Prints docs/flags.md: the flags of berth-server and of berth-cli. Torch-free.
#include <iostream>

#include "client/cli.h"
#include "client/environment.h"
#include "client/interrupt.h"
#include "server/config.h"

int main() {
  std::cout << "# Flags\n\n"
               "Generated from the code by `./dev docs`. Write a flag as --name=value or --name value. A flag that is "
               "listed without a\nvalue is true or false, and its name alone means true.\n\n"
               "## berth-server\n"
            << berth::FlagsMarkdown();
  berth::cli::Interrupt interrupt([] {});
  berth::cli::Environment environment = {.in = std::cin, .out = std::cout, .err = std::cerr, .interrupt = interrupt};
  return berth::cli::RunCli(std::vector<std::string>{"--help=markdown"}, environment);
}
