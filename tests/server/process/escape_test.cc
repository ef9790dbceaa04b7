#include "server/process/escape.h"

#include <gtest/gtest.h>

#include <string>

namespace berth {
namespace {

std::string Utf8(uint32_t code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
  if (code < 0x10000) {
    return {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
            static_cast<char>(0x80 | (code & 0x3F))};
  }
  return {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3F)),
          static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
}

// Every code point that Unicode calls Cc, Zl, Zp or Bidi_Control, and the invisible ones.
bool Unsafe(uint32_t code) {
  const bool c0 = code <= 0x1F;
  const bool c1 = code >= 0x7F && code <= 0x9F;
  const bool lines = code == 0x2028 || code == 0x2029;
  const bool directions = code == 0x61C || code == 0x200E || code == 0x200F || (code >= 0x202A && code <= 0x202E) ||
                          (code >= 0x2066 && code <= 0x2069);
  const bool invisible = (code >= 0x200B && code <= 0x200D) || (code >= 0x2060 && code <= 0x2065) ||
                         (code >= 0x206A && code <= 0x206F) || code == 0xFEFF;
  return c0 || c1 || lines || directions || invisible;
}

TEST(EscapeTest, EscapesExactlyTheControlCharactersOfAllOfUnicode) {
  for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    const std::string text = "a" + Utf8(code) + "b";
    ASSERT_EQ(HasControlCharacter(text), Unsafe(code)) << std::hex << code;
    const std::string escaped = EscapeControls(text);
    ASSERT_EQ(escaped != text, Unsafe(code)) << std::hex << code;
    ASSERT_FALSE(HasControlCharacter(escaped)) << std::hex << code;
  }
}

TEST(EscapeTest, WritesThemByNumber) {
  EXPECT_EQ(EscapeControls("a\nb\x1b[0m\x7f"), "a\\x0ab\\x1b[0m\\x7f");
  EXPECT_EQ(EscapeControls("\xc2\x85 \xe2\x80\xae \xe2\x80\xa8"), "\\u0085 \\u202e \\u2028");
  EXPECT_EQ(EscapeControls("gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\xa2"), "gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\xa2");
}

TEST(EscapeTest, EscapesWhatIsNotUtf8ByteByByte) {
  EXPECT_EQ(EscapeControls("\xff"), "\\xff");
  EXPECT_EQ(EscapeControls("\xc2"), "\\xc2");                    // cut off
  EXPECT_EQ(EscapeControls("\xe2\x80"), "\\xe2\\x80");           // cut off
  EXPECT_EQ(EscapeControls("\xc0\x8a"), "\\xc0\\x8a");           // an overlong line feed
  EXPECT_EQ(EscapeControls("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(EscapeControls("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(EscapeControls("\x9b"
                           "31m"),
            "\\x9b"
            "31m");  // a C1 control of terminals that read bytes
}

TEST(EscapeTest, AQuotedValueCannotForgeItsEnd) {
  EXPECT_EQ(Quoted("a\" b=\"c\\"), "\"a\\\" b=\\\"c\\\\\"");
  EXPECT_EQ(Quoted(""), "\"\"");
  EXPECT_EQ(Quoted("x\r\n"), "\"x\\x0d\\x0a\"");
}

}  // namespace
}  // namespace berth
