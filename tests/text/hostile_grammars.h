// Grammars that are made to cost much.
#ifndef BERTH_TESTS_TEXT_HOSTILE_GRAMMARS_H_
#define BERTH_TESTS_TEXT_HOSTILE_GRAMMARS_H_

#include <map>
#include <string>

#include "text/grammar_spec.h"

namespace berth {

// By a name that says what each has too much of.
std::map<std::string, GrammarSpec> HostileGrammars();

// `text`, `count` times.
std::string Repeat(const std::string& text, int count);

}  // namespace berth

#endif  // BERTH_TESTS_TEXT_HOSTILE_GRAMMARS_H_
