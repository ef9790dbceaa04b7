// The exit codes of berth-server. docs/operations.md explains each.
#ifndef BERTH_SERVER_PROCESS_EXIT_CODES_H_
#define BERTH_SERVER_PROCESS_EXIT_CODES_H_

namespace berth {

// Stopped by a signal, after a drain. A second signal ends the process with 128 + its number.
inline constexpr int kStoppedExitCode = 0;
// The start failed.
inline constexpr int kFailedStartExitCode = 1;
// A CUDA error from which only a new process recovers.
inline constexpr int kDeviceLostExitCode = 3;
// A step, or the start, hangs.
inline constexpr int kHangExitCode = 4;

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_EXIT_CODES_H_
