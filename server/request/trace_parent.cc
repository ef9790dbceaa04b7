#include "server/request/trace_parent.h"

#include <algorithm>
#include <cstddef>

namespace berth {
namespace {

constexpr size_t kLength = 55;  // of version 00

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(absl::string_view text) { return IsHex(text) && text.find_first_not_of('0') != absl::string_view::npos; }

}  // namespace

bool IsTraceParent(absl::string_view value) {
  if (value.size() < kLength || value[2] != '-' || value[35] != '-' || value[52] != '-') return false;
  const absl::string_view version = value.substr(0, 2);
  if (!IsHex(version) || version == "ff") return false;
  if (value.size() > kLength && (version == "00" || value[kLength] != '-')) return false;
  return IsId(value.substr(3, 32)) && IsId(value.substr(36, 16)) && IsHex(value.substr(53, 2));
}

}  // namespace berth
