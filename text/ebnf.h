// Translates EBNF, as vLLM's `grammar` and llama.cpp's GBNF have it, into llguidance's variant of Lark. Functions;
// thread-safe.
//
//   root ::= greeting " " [A-Z] [a-z]{1,8} ("!" | ".")?   # the first rule is root
//   greeting ::= "Hello" | "Good day"
//
// Literals in double quotes; classes of characters; `.`, any character; rules by name; groups; alternatives; `*`, `+`,
// `?`, {n}, {n,} and {n,m}; comments. Escapes: \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH.
#ifndef BERTH_TEXT_EBNF_H_
#define BERTH_TEXT_EBNF_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

// Whether the grammar is EBNF, not Lark: its rules are written with `::=`.
bool IsEbnf(absl::string_view grammar);

// INVALID_ARGUMENT naming the line and the construct: the grammar has an error, or a construct that is not in the list
// above. The time is proportional to the length.
absl::StatusOr<std::string> EbnfToLark(absl::string_view grammar);

}  // namespace berth

#endif  // BERTH_TEXT_EBNF_H_
