#include "server/process/escape.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace berth {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: the text does not begin with a character of UTF-8
};

// The first character of `text`, which is not empty. Refuses overlong forms, surrogates and codes over U+10FFFF.
Character First(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xC0) != 0x80) return {};
    code = code << 6 | (next & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {code, bytes};
}

bool IsControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code <= 0x9F) || code == 0x61C || (code >= 0x200B && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF;
}

void Append(absl::string_view text, bool quoted, std::string* out) {
  while (!text.empty()) {
    const Character first = First(text);
    const size_t bytes = first.bytes == 0 ? 1 : first.bytes;
    if (first.bytes == 0) {
      absl::StrAppendFormat(out, "\\x%02x", static_cast<uint8_t>(text[0]));
    } else if (IsControl(first.code) && first.code < 0x80) {
      absl::StrAppendFormat(out, "\\x%02x", first.code);
    } else if (IsControl(first.code)) {
      absl::StrAppendFormat(out, "\\u%04x", first.code);
    } else {
      if (quoted && (first.code == '"' || first.code == '\\')) out->push_back('\\');
      out->append(text.data(), bytes);
    }
    text.remove_prefix(bytes);
  }
}

}  // namespace

bool HasControlCharacter(absl::string_view text) {
  while (!text.empty()) {
    const Character first = First(text);
    if (first.bytes > 0 && IsControl(first.code)) return true;
    text.remove_prefix(first.bytes == 0 ? 1 : first.bytes);
  }
  return false;
}

std::string EscapeControls(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  Append(text, /*quoted=*/false, &out);
  return out;
}

std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  Append(text, /*quoted=*/true, &out);
  out.push_back('"');
  return out;
}

}  // namespace berth
