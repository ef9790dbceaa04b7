#include "server/api/field_checks.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace berth {
namespace {

constexpr int64_t kMaxRequestIdCharacters = 128;

template <typename T>
std::string ToShortest(T value) {
  char text[32];  // the longest double takes 24
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

// Characters that end lines, change the direction of text or are invisible controls: an id stands in logs. `text` is
// UTF-8. C1 controls; U+061C; U+200B to U+200F; U+2028 to U+202E; U+2060 to U+206F; U+FEFF.
bool HasUnicodeControl(std::string_view text) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const auto byte = [&](size_t at) { return i + at < text.size() ? static_cast<uint8_t>(text[i + at]) : uint8_t{0}; };
    const uint8_t second = byte(1);
    const uint8_t third = byte(2);
    if (byte(0) == 0xC2 && second <= 0x9F) return true;
    if (byte(0) == 0xD8 && second == 0x9C) return true;
    if (byte(0) == 0xE2 && second == 0x80 && ((third >= 0x8B && third <= 0x8F) || (third >= 0xA8 && third <= 0xAE))) {
      return true;
    }
    if (byte(0) == 0xE2 && second == 0x81 && third >= 0xA0 && third <= 0xAF) return true;
    if (byte(0) == 0xEF && second == 0xBB && third == 0xBF) return true;
  }
  return false;
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
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(id.begin(), id.end(), is_control) || HasUnicodeControl(id)) {
    return Invalid(field, ": has a control character");
  }
  return absl::OkStatus();
}

absl::Status CheckCacheSalt(absl::string_view field, std::string_view salt) {
  return salt.empty() ? absl::OkStatus() : CheckRequestId(field, salt);
}

}  // namespace berth
