// The signals that the server handles. One set per process, because signals are.
//
//   SIGTERM, SIGINT            the first one asks for a drain; a second one ends the process with 128 + its number
//   SIGHUP                     asks for a reload
//   SIGUSR1, SIGUSR2, SIGPIPE  ignored
//   SIGXFSZ                    ignored, so that a file over ulimit -f is a failed write
//
// Before KeepStops, SIGTERM and SIGINT end the process at once.
// Faults print their stack (server/process/fault_trace.h). Others have their default effect: SIGQUIT ends the process
// with a core dump.
#ifndef BERTH_SERVER_PROCESS_PROCESS_SIGNALS_H_
#define BERTH_SERVER_PROCESS_PROCESS_SIGNALS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace berth {

class ProcessSignals {
 public:
  enum class Event {
    kNone,
    kReload,
    kStop,
  };

  // From now on SIGHUP is kept for Wait, and the ignored signals are ignored. INTERNAL when the handlers cannot be
  // installed.
  static absl::Status KeepReloads();
  // From now on the first SIGTERM or SIGINT is kept for Wait. REQUIRES: KeepReloads was called.
  static absl::Status KeepStops();

  // Waits until a signal has come; kNone after `timeout`. Reloads since the last kReload count as one. Once a stop has
  // come, each call returns kStop. One thread at a time.
  static Event Wait(absl::Duration timeout);
};

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_PROCESS_SIGNALS_H_
