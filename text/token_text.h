// What one token adds to a text.
#ifndef BERTH_TEXT_TOKEN_TEXT_H_
#define BERTH_TEXT_TOKEN_TEXT_H_

#include <string>

namespace berth {

struct TokenText {
  std::string text;   // UTF-8, with U+FFFD for each part of a character
  std::string bytes;  // the token's bytes, if `text` has such marks for them; else ""

  const std::string& all_bytes() const { return bytes.empty() ? text : bytes; }
};

}  // namespace berth

#endif  // BERTH_TEXT_TOKEN_TEXT_H_
