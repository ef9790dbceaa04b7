// Parses JSON of strangers, which came with a checkpoint or from a client: bounded in size, depth and keys, never
// throwing. Pure functions; thread-safe. Models read their configuration through ConfigReader
// (models/checkpoint/json_config.h).
#ifndef BERTH_BASE_BOUNDED_JSON_H_
#define BERTH_BASE_BOUNDED_JSON_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

struct JsonLimits {
  int64_t max_bytes = 16 << 20;
  int max_depth = 32;    // of arrays and objects in one another
  int64_t max_keys = 0;  // of one object; 0: no limit
  // Accept bare Infinity, -Infinity and NaN, as Python's json writes them, although JSON lacks them. They are read as
  // {"__float__": "Infinity"}, which transformers 5 writes.
  bool python_floats = false;
  bool refuse_duplicate_keys = false;  // false: the last one counts, as in Python
};

// INVALID_ARGUMENT that names `what` if `text` exceeds a limit or is not JSON.
absl::Status ParseJson(absl::string_view text, absl::string_view what, const JsonLimits& limits,
                       nlohmann::json* result);
// INVALID_ARGUMENT also if there is no object at the top.
absl::Status ParseJsonObject(absl::string_view text, absl::string_view what, const JsonLimits& limits,
                             nlohmann::json* result);

// FAILED_PRECONDITION when the file cannot be read, INVALID_ARGUMENT when it is over `max_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes);

// `value` as JSON text, cut to what an error message can hold.
std::string ShortDump(const nlohmann::json& value);

// A name from a file, quoted, with control characters escaped, cut to what an error message can hold.
std::string ShortQuote(absl::string_view name);

}  // namespace berth

#endif  // BERTH_BASE_BOUNDED_JSON_H_
