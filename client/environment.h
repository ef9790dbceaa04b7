// What a command sees of the process it runs in: its streams and Ctrl-C. Why: tests run commands on string streams.
// Thread-compatible.
#ifndef BERTH_CLIENT_ENVIRONMENT_H_
#define BERTH_CLIENT_ENVIRONMENT_H_

#include <istream>
#include <ostream>

#include "client/interrupt.h"

namespace berth::cli {

struct Environment {
  std::istream& in;
  std::ostream& out;  // answers and reports
  std::ostream& err;  // errors, prompts and progress
  bool in_is_terminal = false;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  Interrupt& interrupt;
};

// Exit codes of every command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;         // the server could not be reached, a request or a check failed
inline constexpr int kExitUsage = 2;          // an unknown command or flag, a bad value
inline constexpr int kExitInterrupted = 130;  // Ctrl-C

}  // namespace berth::cli

#endif  // BERTH_CLIENT_ENVIRONMENT_H_
