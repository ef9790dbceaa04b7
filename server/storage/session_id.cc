#include "server/storage/session_id.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace berth {

absl::Status CheckSessionId(absl::string_view field, std::string_view id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (id.empty() || id.size() > 128) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", id.size(), " characters are outside [1, 128]"));
  }
  if (id[0] == '.' || !std::all_of(id.begin(), id.end(), allowed)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": only A-Z a-z 0-9 . _ - are allowed, and no dot in front"));
  }
  return absl::OkStatus();
}

}  // namespace berth
