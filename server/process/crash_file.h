// Writes the engine's last steps to a file when the process ends by a fault (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP,
// SIGABRT), a step that hangs, or a lost GPU. `berth-cli trace --from=FILE` shows them. One per process: signals are.
#ifndef BERTH_SERVER_PROCESS_CRASH_FILE_H_
#define BERTH_SERVER_PROCESS_CRASH_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "scheduler/load/flight_recorder.h"

namespace berth {

class CrashFile {
 public:
  // From now on a fault writes <folder>/berth-<process id>.steps, and then has the effect that it had before.
  // FAILED_PRECONDITION naming the folder: no file can be written there. INTERNAL: the handlers cannot be installed.
  static absl::Status Install(const std::string& folder, const FlightRecorder* recorder);
  // The recorder is about to be destroyed. A fault writes no file any more.
  static void Forget();
  // Writes the file now, once, if Install was called. Async-signal-safe.
  static void Write();
};

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_CRASH_FILE_H_
