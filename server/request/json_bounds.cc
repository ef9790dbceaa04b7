#include "server/request/json_bounds.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

// The deepest nesting of brackets outside strings. Text that is not JSON gets some number; the parser refuses it.
int64_t Depth(std::string_view text) {
  int64_t depth = 0;
  int64_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// The keys of the object that has most.
int64_t MostKeys(const nlohmann::json& json) {
  int64_t most = json.is_object() ? static_cast<int64_t>(json.size()) : 0;
  if (json.is_structured()) {
    for (const nlohmann::json& value : json) most = std::max(most, MostKeys(value));
  }
  return most;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseBoundedJson(absl::string_view field, std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", text.size(), " bytes are over the limit of ", kMaxJsonBytes));
  }
  if (const int64_t depth = Depth(text); depth > kMaxJsonDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": a depth of ", depth, " is over the limit of ", kMaxJsonDepth));
  }
  // The parser would skip it, but what is made of the text would not.
  if (text.substr(0, 3) == "\xEF\xBB\xBF") {
    return absl::InvalidArgumentError(absl::StrCat(field, ": begins with a byte order mark; leave it out"));
  }
  // The parser would take it for the end of the text, and not read what follows.
  if (const size_t at = text.find('\0'); at != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": has a zero byte, at byte ", at));
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(field, ": not JSON"));
  if (const int64_t keys = MostKeys(json); keys > kMaxJsonKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": an object of ", keys, " keys is over the limit of ", kMaxJsonKeys));
  }
  return json;
}

}  // namespace berth
