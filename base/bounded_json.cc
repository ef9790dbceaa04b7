#include "base/bounded_json.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using nlohmann::json;

constexpr size_t kMaxShown = 120;

// The parser calls itself for each array and object, so the depth is checked before it sees the text. Brackets that do
// not match are left to it.
absl::Status CheckDepth(absl::string_view text, absl::string_view what, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '}' || c == ']') --depth;
    if ((c == '{' || c == '[') && ++depth > max_depth) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": nested deeper than the limit of ", max_depth, " at byte ", i));
    }
  }
  return absl::OkStatus();
}

// The text with Python's bare floats replaced.
std::string WithoutBareFloats(absl::string_view text) {
  std::string replaced;
  replaced.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      replaced.push_back(c);
      if (c == '\\' && i + 1 < text.size()) replaced.push_back(text[++i]);
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    absl::string_view found;
    if (c == 'I' || c == '-' || c == 'N') {
      for (absl::string_view name : {"Infinity", "-Infinity", "NaN"}) {
        if (absl::StartsWith(text.substr(i), name)) found = name;
      }
    }
    if (found.empty()) {
      replaced.push_back(c);
    } else {
      absl::StrAppend(&replaced, "{\"__float__\":\"", found, "\"}");
      i += found.size() - 1;
    }
  }
  return replaced;
}

// The keys of the object that has most.
int64_t MostKeys(const json& value) {
  int64_t most = value.is_object() ? static_cast<int64_t>(value.size()) : 0;
  if (value.is_structured()) {
    for (const json& part : value) most = std::max(most, MostKeys(part));
  }
  return most;
}

}  // namespace

absl::Status ParseJson(absl::string_view text, absl::string_view what, const JsonLimits& limits, json* result) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", text.size(), " bytes of JSON are over the limit of ", limits.max_bytes));
  }
  // The parser would skip it, but others that read the text would not.
  if (absl::StartsWith(text, "\xEF\xBB\xBF")) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": begins with a byte order mark; leave it out"));
  }
  // The parser would take it for the end of the text, and not read what follows.
  if (const size_t at = text.find('\0'); at != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": is not JSON: has a zero byte, at byte ", at));
  }
  if (absl::Status status = CheckDepth(text, what, limits.max_depth); !status.ok()) return status;
  const std::string replaced = limits.python_floats ? WithoutBareFloats(text) : "";
  const absl::string_view json_text = limits.python_floats ? replaced : text;

  std::string duplicate;
  bool has_duplicate = false;
  std::vector<absl::flat_hash_set<std::string>> keys;  // of the objects being parsed, outermost first
  const json::parser_callback_t watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !has_duplicate) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        duplicate = key;
        has_duplicate = true;
      }
    }
    return true;
  };
  try {
    *result = json::parse(json_text.begin(), json_text.end(),
                          limits.refuse_duplicate_keys ? watch : json::parser_callback_t(nullptr));
  } catch (const json::exception& e) {
    absl::string_view why = e.what();  // begins with the exception's name in brackets, which says nothing to a user
    if (const size_t end = why.find("] "); end != absl::string_view::npos) why.remove_prefix(end + 2);
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": is not JSON: ", absl::CHexEscape(why.substr(0, 2 * kMaxShown))));
  }
  if (has_duplicate)
    return absl::InvalidArgumentError(absl::StrCat(what, ": key ", ShortQuote(duplicate), " occurs twice"));
  if (const int64_t keys = limits.max_keys > 0 ? MostKeys(*result) : 0; keys > limits.max_keys) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": an object of ", keys, " keys is over the limit of ", limits.max_keys));
  }
  return absl::OkStatus();
}

absl::Status ParseJsonObject(absl::string_view text, absl::string_view what, const JsonLimits& limits, json* result) {
  if (absl::Status s = ParseJson(text, what, limits, result); !s.ok()) return s;
  if (!result->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": must be a JSON object, is ", ShortDump(*result)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  std::string text;
  char chunk[65536];
  while (file.read(chunk, sizeof(chunk)) || file.gcount() > 0) {
    text.append(chunk, static_cast<size_t>(file.gcount()));
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": over the limit of ", max_bytes, " bytes"));
    }
  }
  if (file.bad() || !file.eof()) return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be read"));
  return text;
}

std::string ShortDump(const json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = absl::StrCat(text.substr(0, kMaxShown), "...");
  return text;
}

std::string ShortQuote(absl::string_view name) {
  if (name.size() <= kMaxShown) return absl::StrCat("\"", absl::CHexEscape(name), "\"");
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxShown)), "...\"");
}

}  // namespace berth
