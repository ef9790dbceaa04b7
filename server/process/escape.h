// Makes text that came from outside safe to print: in a log line it can neither end the line, nor hide or reorder other
// characters, nor command a terminal. Functions; thread-safe.
#ifndef BERTH_SERVER_PROCESS_ESCAPE_H_
#define BERTH_SERVER_PROCESS_ESCAPE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace berth {

// Whether UTF-8 text has a control character. These are C0, DEL and C1; U+2028 and U+2029, which end lines; and
// characters that change the direction of text (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069). Other
// invisible ones count too: U+200B to U+200D, U+2060 to U+2065, U+206A to U+206F, and U+FEFF.
bool HasControlCharacter(absl::string_view text);

// Writes those characters as \x0a or \u202e, and each byte that is not of UTF-8 as \xff.
std::string EscapeControls(absl::string_view text);

// Does this in quotation marks, with \" and \\ for what would end or forge them: for a value inside a line of the log.
std::string Quoted(absl::string_view text);

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_ESCAPE_H_
