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
  // What becomes of a keyword or format that the schema's draft does not know: a warning, or an error.
  bool refuse_unknown = false;
  // Properties in any order, not only in the schema's.
  bool any_order = false;
  // When the constraint begins: after this token, or this text, has come for the first time. Neither: at once. Before,
  // every text may come, but not the end.
  int32_t begin_token = -1;
  std::string begin_text;
  // Whether the output starts a text of its own: its stream has no context, or none with text (text/detokenizer.h).
  // Some decoders then drop a leading space, so one has to come.
  bool own_text = false;

  bool operator==(const GrammarSpec&) const = default;
};

// Bounds of what one grammar may cost. Compiling or parsing past one is an error that names it. 0: the default, which
// is in parentheses.
struct GrammarLimits {
  // Bytes of GrammarSpec::text, begin_text and all choices together. A Lark grammar has at most 256 KiB.
  int64_t max_text_bytes = int64_t{1} << 20;
  int64_t max_grammar_size = 0;    // symbols in the grammar's rules (500,000)
  int64_t max_lexer_states = 0;    // of one output's lexer, 1-2 KB each (250,000)
  int64_t initial_lexer_fuel = 0;  // work to build the lexer, 50,000 each millisecond (10,000,000)
  int64_t step_lexer_fuel = 0;     // work of the lexer for one mask, 14,000 each millisecond (1,000,000)
  int64_t step_max_items = 0;      // items of the parser for one mask, 20,000 each millisecond (50,000)
  int64_t max_items_in_row = 0;    // items of the parser at one place of the output (8,000)
};

// A compiled grammar. `start` is at the beginning of the output; each request clones it.
struct CompiledGrammar {
  std::shared_ptr<const TokenConstraint> start;
  int64_t size_bytes = 0;             // an estimate of the memory that `start` holds, for a cache's limit
  std::vector<std::string> warnings;  // of what a schema has that constrains nothing, by its JSON pointer
};

}  // namespace berth

#endif  // BERTH_TEXT_GRAMMAR_SPEC_H_
