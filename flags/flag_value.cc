#include "flags/flag_value.h"

#include <iterator>

#include "absl/strings/numbers.h"

namespace berth {
namespace {

template <typename T>
absl::Status ParseWhole(absl::string_view text, T* value) {
  if (absl::SimpleAtoi(text, value)) return absl::OkStatus();
  return RefuseValue(text, std::is_unsigned_v<T> ? "is not a whole number of 0 or more" : "is not a whole number");
}

}  // namespace

absl::Status RefuseValue(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(text.empty() ? "an empty value" : text, " ", why));
}

absl::Status ParseFlagValue(absl::string_view text, bool* value) {
  return absl::SimpleAtob(text, value) ? absl::OkStatus() : RefuseValue(text, "is not true or false");
}
absl::Status ParseFlagValue(absl::string_view text, int32_t* value) { return ParseWhole(text, value); }
absl::Status ParseFlagValue(absl::string_view text, int64_t* value) { return ParseWhole(text, value); }
absl::Status ParseFlagValue(absl::string_view text, uint32_t* value) { return ParseWhole(text, value); }
absl::Status ParseFlagValue(absl::string_view text, uint64_t* value) { return ParseWhole(text, value); }
absl::Status ParseFlagValue(absl::string_view text, float* value) {
  return absl::SimpleAtof(text, value) ? absl::OkStatus() : RefuseValue(text, "is not a number");
}
absl::Status ParseFlagValue(absl::string_view text, double* value) {
  return absl::SimpleAtod(text, value) ? absl::OkStatus() : RefuseValue(text, "is not a number");
}
absl::Status ParseFlagValue(absl::string_view text, std::string* value) {
  *value = std::string(text);
  return absl::OkStatus();
}
absl::Status ParseFlagValue(absl::string_view text, absl::Duration* value) {
  if (absl::ParseDuration(text, value)) return absl::OkStatus();
  return RefuseValue(text, "is not a valid duration; write for example 30s or 500ms");
}
absl::Status ParseFlagValue(absl::string_view text, Address* value) {
  absl::StatusOr<Address> address = ParseAddress(text);
  if (!address.ok()) return address.status();
  *value = *std::move(address);
  return absl::OkStatus();
}
absl::Status ParseFlagValue(absl::string_view text, std::vector<std::string>* value) {
  value->emplace_back(text);
  return absl::OkStatus();
}

std::string FormatFlagValue(bool value) { return value ? "true" : "false"; }
std::string FormatFlagValue(int64_t value) { return absl::StrCat(value); }
std::string FormatFlagValue(absl::Duration value) { return absl::FormatDuration(value); }
std::string FormatFlagValue(const std::vector<std::string>& value) { return absl::StrJoin(value, ","); }

namespace flag_internal {

absl::Status ParseBytes(absl::string_view text, const std::string& zero, int64_t* value) {
  if (!zero.empty() && text == zero) {
    *value = 0;
    return absl::OkStatus();
  }
  const absl::StatusOr<int64_t> bytes = ParseByteSize(text);
  if (bytes.ok()) {
    *value = *bytes;
    return absl::OkStatus();
  }
  const std::string alternative = zero.empty() ? "" : absl::StrCat(", or ", zero);
  return absl::InvalidArgumentError(absl::StrCat(bytes.status().message(), alternative));
}

// In the largest unit that keeps it exact.
std::string FormatBytes(int64_t value, const std::string& zero) {
  if (value == 0) return zero;
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; value % 1024 == 0 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return absl::StrCat(value, kUnits[unit]);
}

}  // namespace flag_internal
}  // namespace berth
