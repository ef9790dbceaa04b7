// SIGTERM and SIGINT: before the server listens they end the process at once; then the first one asks for a drain and
// a second one ends the process at once. One per process, because signals are.
#ifndef BERTH_SERVER_SHUTDOWN_SIGNAL_H_
#define BERTH_SERVER_SHUTDOWN_SIGNAL_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace berth {

class ShutdownSignal {
 public:
  // From now on the first signal is kept for Wait. INTERNAL when the handlers cannot be installed.
  static absl::Status Install();

  // True as soon as a signal has come; false after `timeout`. One thread at a time.
  static bool Wait(absl::Duration timeout);
};

}  // namespace berth

#endif  // BERTH_SERVER_SHUTDOWN_SIGNAL_H_
