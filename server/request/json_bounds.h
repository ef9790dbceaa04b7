// Checks JSON that a client sent before anything recurses over it: its size, its depth, that it parses, and how many
// keys its objects have. Thread-safe.
#ifndef BERTH_SERVER_REQUEST_JSON_BOUNDS_H_
#define BERTH_SERVER_REQUEST_JSON_BOUNDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

inline constexpr int64_t kMaxJsonBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxJsonDepth = 32;  // of arrays and objects in one another
// Of one object. An nlohmann::ordered_json compares each new key with all before it: 90,000 keys in 0.9 MB take 5 s.
inline constexpr int64_t kMaxJsonKeys = 1024;

// INVALID_ARGUMENT naming `field` when `text` is too long, too deep, not JSON, or has an object with too many keys.
absl::StatusOr<nlohmann::json> ParseBoundedJson(absl::string_view field, std::string_view text);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_JSON_BOUNDS_H_
