// Parses JSON that came with a checkpoint, and so from strangers: bounded in size and depth, never throwing.
// Pure functions; thread-safe. Torch-free. For models/checkpoint/ only: others read through ConfigReader.
#ifndef BERTH_MODELS_CHECKPOINT_BOUNDED_JSON_H_
#define BERTH_MODELS_CHECKPOINT_BOUNDED_JSON_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

struct JsonLimits {
  int64_t max_bytes = 16 << 20;
  int max_depth = 32;
  // Accept bare Infinity, -Infinity and NaN, as Python's json writes them, although JSON lacks them. They are read as
  // {"__float__": "Infinity"}, which transformers 5 writes.
  bool python_floats = false;
  bool refuse_duplicate_keys = false;  // false: the last one counts, as in Python
};

// INVALID_ARGUMENT that names `what` if `text` exceeds a limit, is not JSON, or has no object at the top.
absl::Status ParseJsonObject(absl::string_view text, absl::string_view what, const JsonLimits& limits,
                             nlohmann::json* result);

// FAILED_PRECONDITION when the file cannot be read, INVALID_ARGUMENT when it is over `max_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes);

// `value` as JSON text, cut to what an error message can hold.
std::string ShortDump(const nlohmann::json& value);

// A name from a file, quoted, with control characters escaped, cut to what an error message can hold.
std::string ShortQuote(absl::string_view name);

}  // namespace berth

#endif  // BERTH_MODELS_CHECKPOINT_BOUNDED_JSON_H_
