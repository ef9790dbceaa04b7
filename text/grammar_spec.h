// What a request's output must look like, and its compiled form. Plain structs, without the crate that compiles them
// (text/grammar.h).
#ifndef BERTH_TEXT_GRAMMAR_SPEC_H_
#define BERTH_TEXT_GRAMMAR_SPEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/token_constraint.h"

namespace berth {

// What the output must look like. Two equal specs have the same language.
struct GrammarSpec {
  enum class Kind { kJsonSchema, kJsonObject, kRegex, kChoice, kLark, kStructuralTag };
  enum class Whitespace {
    kFlexible,  // any JSON whitespace between the tokens of JSON
    kCompact,   // none
    kSpaced,    // one space after each comma and colon, as Python's json.dumps writes
  };

  Kind kind = Kind::kJsonObject;
  // The schema (JSON), regex, Lark grammar or structural tag (JSON). Unused for kJsonObject and kChoice.
  std::string text;
  std::vector<std::string> choices;  // kChoice only
  Whitespace whitespace = Whitespace::kFlexible;
  // When the constraint begins: after this token, or this text, has come for the first time. Neither: at once. Before,
  // every text may come, but not the end.
  int32_t begin_token = -1;
  std::string begin_text;

  bool operator==(const GrammarSpec&) const = default;
};

// Bounds of what one grammar may cost. Compiling or parsing past one is an error that names it.
struct GrammarLimits {
  int64_t max_text_bytes = int64_t{1} << 20;  // of GrammarSpec::text, and of all choices together
  int64_t max_grammar_size = 0;               // 0, here and below: llguidance's default, which the .cc file documents
  int64_t max_lexer_states = 0;
  int64_t initial_lexer_fuel = 0;
  int64_t step_lexer_fuel = 0;
  int64_t step_max_items = 0;
};

// A compiled grammar. `start` is at the beginning of the output; each request clones it.
struct CompiledGrammar {
  std::shared_ptr<const TokenConstraint> start;
  int64_t size_bytes = 0;  // an estimate of the memory that `start` holds, for a cache's limit
};

}  // namespace berth

#endif  // BERTH_TEXT_GRAMMAR_SPEC_H_
