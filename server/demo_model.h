// Finds the demo model that comes with the server, for a start without --model. Reads the disk; thread-safe.
#ifndef BERTH_SERVER_DEMO_MODEL_H_
#define BERTH_SERVER_DEMO_MODEL_H_

#include <string>

#include "absl/status/statusor.h"

namespace berth {

// Returns its folder, by the path of the running `program`. An installed server has it in ../share/berth, and one that
// was just built among the files that Bazel puts beside the program. FAILED_PRECONDITION naming both if it is nowhere.
absl::StatusOr<std::string> FindDemoModel(const std::string& program);

}  // namespace berth

#endif  // BERTH_SERVER_DEMO_MODEL_H_
