// The names of sessions. Thread-safe.
#ifndef BERTH_SERVER_STORAGE_SESSION_ID_H_
#define BERTH_SERVER_STORAGE_SESSION_ID_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth {

// A session's id is also the name of its file: 1 to 128 of A-Z a-z 0-9 . _ -, not beginning with a dot.
// INVALID_ARGUMENT naming the field.
absl::Status CheckSessionId(absl::string_view field, std::string_view id);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_SESSION_ID_H_
