// The C ABI of text/crate. Calls return 0, or 1 with a message in `error`. Free their results with berth_bytes_free or
// berth_ids_free. Tokenizers, templates and vocabularies are immutable: several threads may call one at once. A grammar
// is one thread's at a time, but several may clone it. tests/dev/test_abi.py compares this file with the crate.
#ifndef BERTH_TEXT_TEXT_ABI_H_
#define BERTH_TEXT_TEXT_ABI_H_

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct BerthBytes {
  uint8_t* data;
  size_t len;
};
struct BerthIds {
  uint32_t* data;
  size_t len;
};
void berth_bytes_free(BerthBytes bytes);
void berth_ids_free(BerthIds ids);

struct BerthTokenizer;
// `bytes`: none if they are those of `text`.
struct BerthTokenText {
  BerthBytes text;
  BerthBytes bytes;
};
// `settings`: what other files add, as text/tokenizer_config.h writes it; empty: nothing.
int32_t berth_tokenizer_load(const uint8_t* json, size_t len, const uint8_t* settings, size_t settings_len,
                             BerthTokenizer** out, BerthBytes* error);
void berth_tokenizer_free(BerthTokenizer* tokenizer);
bool berth_tokenizer_is_bpe(const BerthTokenizer* tokenizer);
// Gives the first words' ids alone if they are more than `max_tokens` (0: no limit). `stop`, which may be null, is
// asked before each word whether to fail.
int32_t berth_tokenizer_encode(const BerthTokenizer* tokenizer, const uint8_t* text, size_t len,
                               bool add_special_tokens, size_t max_tokens, bool (*stop)(const void*),
                               const void* stop_data, BerthIds* out, BerthBytes* error);
int32_t berth_tokenizer_decode(const BerthTokenizer* tokenizer, const uint32_t* ids, size_t len,
                               bool skip_special_tokens, BerthBytes* out, BerthBytes* error);
int32_t berth_tokenizer_token_text(const BerthTokenizer* tokenizer, uint32_t id, bool first, BerthTokenText* out,
                                   BerthBytes* error);
int64_t berth_tokenizer_id(const BerthTokenizer* tokenizer, const uint8_t* token, size_t len);
bool berth_tokenizer_reads(const BerthTokenizer* tokenizer, uint32_t id, bool skip_special_tokens);
int64_t berth_tokenizer_size(const BerthTokenizer* tokenizer);
int64_t berth_tokenizer_longest_token(const BerthTokenizer* tokenizer);

struct BerthTemplate;
int32_t berth_template_load(const uint8_t* source, size_t len, BerthTemplate** out, BerthBytes* error);
void berth_template_free(BerthTemplate* chat_template);
int32_t berth_template_render(const BerthTemplate* chat_template, const uint8_t* context, size_t len, BerthBytes* out,
                              BerthBytes* error);

// The bytes of every token (crate/src/vocabulary.rs). The tokenizer outlives the vocabulary and its grammars.
// `mask_bytes`: the most that kept masks may take (crate/src/mask_cache.rs).
struct BerthVocabulary;
int32_t berth_vocabulary_create(const BerthTokenizer* tokenizer, int64_t vocab_size, const uint32_t* end_tokens,
                                size_t len, size_t mask_bytes, BerthVocabulary** out, BerthBytes* error);
void berth_vocabulary_free(BerthVocabulary* vocabulary);
// The token's bytes; those of a control token after 0xFF; none if it may never come.
int32_t berth_vocabulary_word(const BerthVocabulary* vocabulary, uint32_t id, BerthBytes* out, BerthBytes* error);

// For one compilation (crate/src/work.rs). Any thread may request.
struct BerthCancel;
BerthCancel* berth_cancel_create();
void berth_cancel_request(const BerthCancel* cancel);
// How many steps of Berth's own work it took, and the most between two looks at the request.
void berth_cancel_work(const BerthCancel* cancel, uint64_t* steps, uint64_t* longest);
void berth_cancel_free(BerthCancel* cancel);

struct BerthView {
  const uint8_t* data;
  size_t len;
};
// text/grammar_spec.h says what the fields mean. A limit of 0 is llguidance's default.
struct BerthGrammarSpec {
  int32_t kind;
  int32_t whitespace;
  int32_t begin_token;
  bool own_text;
  bool refuse_unknown;
  bool any_order;
  BerthView text;
  BerthView begin_text;
  const BerthView* choices;
  size_t num_choices;
  uint64_t max_grammar_size;
  uint64_t max_lexer_states;
  uint64_t initial_lexer_fuel;
  uint64_t step_lexer_fuel;
  uint64_t step_max_items;
  uint64_t max_items_in_row;
};
// A compiled grammar and a place in it (crate/src/constraint.rs). `warnings`: lines about what a schema has that
// constrains nothing.
struct BerthGrammar;
int32_t berth_grammar_compile(const BerthVocabulary* vocabulary, const BerthGrammarSpec* spec,
                              const BerthCancel* cancel, BerthGrammar** out, BerthBytes* warnings, BerthBytes* error);
void berth_grammar_free(BerthGrammar* grammar);
int32_t berth_grammar_clone(const BerthGrammar* grammar, BerthGrammar** out, BerthBytes* error);
uint64_t berth_grammar_size_bytes(const BerthGrammar* grammar);
// The rest as TokenConstraint's methods; `words` of all masks together.
int32_t berth_grammar_fill(BerthGrammar* grammar, const uint32_t* drafts, size_t len, uint32_t* masks, size_t words,
                           BerthBytes* error);
int32_t berth_grammar_accept(BerthGrammar* grammar, uint32_t token, BerthBytes* error);
int32_t berth_grammar_count_allowed(BerthGrammar* grammar, const uint32_t* tokens, size_t len, int64_t* out,
                                    BerthBytes* error);
int32_t berth_grammar_forced(BerthGrammar* grammar, int64_t limit, BerthIds* out, BerthBytes* error);
bool berth_grammar_is_complete(const BerthGrammar* grammar);

}  // extern "C"

#endif  // BERTH_TEXT_TEXT_ABI_H_
