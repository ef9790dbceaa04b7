// Compiles what an output must look like (text/grammar_spec.h) into a TokenConstraint. Compiling and parsing are
// llguidance's, behind the C ABI of text/crate. Torch-free.
#ifndef BERTH_TEXT_GRAMMAR_H_
#define BERTH_TEXT_GRAMMAR_H_

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "text/grammar_spec.h"
#include "text/text_abi.h"
#include "text/tokenizer.h"

namespace berth {

// Every token's bytes as the tokenizer itself decodes them, in a trie. Control tokens are not text: a Lark grammar
// names them by <|name|> or <[id]>. Ids without a token never come. Immutable; thread-safe; share one per model.
class GrammarVocabulary {
 public:
  // `vocab_size`: the model's, which may be over or under the tokenizer's. `end_tokens`: those that end an output.
  // Takes about a second for 128,000 tokens. `tokenizer` must outlive the vocabulary and all that is compiled with it.
  // `mask_bytes` bounds the masks that are kept: outputs of one regex or choice share those of equal states.
  // INVALID_ARGUMENT: the text of the tokenizer's tokens depends on the tokens around them (CTC, WordPiece that cleans
  // up, suffixes of words), so bytes cannot be followed.
  static constexpr int64_t kMaskBytes = int64_t{32} << 20;
  static absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> Create(const Tokenizer* tokenizer, int64_t vocab_size,
                                                                         absl::Span<const int32_t> end_tokens,
                                                                         int64_t mask_bytes = kMaskBytes);
  ~GrammarVocabulary();
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;

  BerthVocabulary* get() const { return vocabulary_; }
  // The token's bytes; a control token's name after 0xFF; "" if it is never text.
  std::string Bytes(int32_t token) const;
  int64_t vocab_size() const { return vocab_size_; }

 private:
  GrammarVocabulary(BerthVocabulary* vocabulary, int64_t vocab_size);

  BerthVocabulary* vocabulary_;
  int64_t vocab_size_;
};

// What a compilation took of Berth's own work, in steps of some microseconds at most. llguidance's is not in it.
struct CompileWork {
  uint64_t steps = 0;
  uint64_t longest = 0;  // the most from one look at the request to stop to the next
};

// Compiles `spec`. May take long: not for the engine's threads or gRPC's (server/request/grammar_compiler.h). A request
// to stop is seen at once in Berth's own work, and between the steps of llguidance's; `limits` bound what one of these
// takes. INVALID_ARGUMENT: the text has an error (the message says where), needs a byte that no token spells, or is
// over a limit. A schema has a keyword that is not supported (the message has its name and JSON pointer).
// CANCELLED: `stop` was requested. `work`, if not null, is written in any case.
absl::StatusOr<CompiledGrammar> CompileGrammar(const GrammarSpec& spec,
                                               std::shared_ptr<const GrammarVocabulary> vocabulary,
                                               const GrammarLimits& limits, std::stop_token stop,
                                               CompileWork* work = nullptr);

}  // namespace berth

#endif  // BERTH_TEXT_GRAMMAR_H_
