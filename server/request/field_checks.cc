#include "server/request/field_checks.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "server/process/escape.h"

namespace berth {
namespace {

constexpr int64_t kMaxRequestIdCharacters = 128;

template <typename T>
std::string ToShortest(T value) {
  char text[32];  // the longest double takes 24
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

}  // namespace

std::string ShortestText(float value) { return ToShortest(value); }
std::string ShortestText(double value) { return ToShortest(value); }

absl::Status CheckCount(absl::string_view field, int64_t count, int64_t limit) {
  if (count <= limit) return absl::OkStatus();
  return Invalid(field, ": ", count, " entries are over the limit of ", limit);
}

absl::Status CheckToken(absl::string_view field, int64_t token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return Invalid(field, ": token id ", token, " is outside [0, ", vocab_size - 1, "]");
}

absl::Status CheckText(absl::string_view field, const std::string& text, int64_t limit) {
  const int64_t bytes = static_cast<int64_t>(text.size());
  if (bytes <= limit) return absl::OkStatus();
  return Invalid(field, ": ", bytes, " bytes are over the limit of ", limit);
}

absl::Status CheckRequestId(absl::string_view field, std::string_view id) {
  const auto starts_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const int64_t characters = std::count_if(id.begin(), id.end(), starts_character);
  if (characters < 1 || characters > kMaxRequestIdCharacters) {
    return Invalid(field, ": ", characters, " characters are outside [1, ", kMaxRequestIdCharacters, "]");
  }
  // An id stands in logs.
  const bool bad = HasControlCharacter(absl::string_view(id.data(), id.size()));
  return bad ? Invalid(field, ": has a control character") : absl::OkStatus();
}

absl::Status CheckCacheSalt(absl::string_view field, std::string_view salt) {
  return salt.empty() ? absl::OkStatus() : CheckRequestId(field, salt);
}

}  // namespace berth
