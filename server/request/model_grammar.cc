#include "server/request/model_grammar.h"

#include <memory>
#include <stop_token>
#include <utility>

#include "text/grammar.h"

namespace berth {

GrammarCompiler::CompileFunction CompileFor(const Tokenizer* tokenizer, int64_t vocab_size,
                                            absl::Span<const int32_t> end_tokens, absl::Status* status) {
  absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> vocabulary =
      GrammarVocabulary::Create(tokenizer, vocab_size, end_tokens);
  *status = vocabulary.status();
  return [vocabulary = std::move(vocabulary)](const GrammarSpec& spec,
                                              const std::stop_token& stop) -> absl::StatusOr<CompiledGrammar> {
    if (!vocabulary.ok()) return vocabulary.status();
    return CompileGrammar(spec, *vocabulary, GrammarLimits(), stop);
  };
}

}  // namespace berth
