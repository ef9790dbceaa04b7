// berth-cli trace: writes what the server's last steps were and took as a Chrome trace, which Perfetto and
// chrome://tracing open.
#ifndef BERTH_CLIENT_TRACE_H_
#define BERTH_CLIENT_TRACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "berth/v1/control.pb.h"
#include "client/environment.h"

namespace berth::cli {

int RunTrace(absl::Span<const std::string> args, Environment& environment);

// The steps as JSON: an object with a list "traceEvents". Times are in microseconds since the first step.
std::string ChromeTrace(const v1::GetStepsResponse& steps);

// Reads what a server wrote to --crash_dir. DATA_LOSS: a server did not write it, or it is torn.
absl::StatusOr<v1::GetStepsResponse> ReadCrashFile(const std::string& path);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_TRACE_H_
