#include "server/request/model_grammar.h"

#include <memory>
#include <mutex>
#include <utility>

#include "text/grammar.h"

namespace berth {
namespace {

class Compile {
 public:
  Compile(const Tokenizer* tokenizer, int64_t vocab_size, std::vector<int32_t> end_tokens)
      : tokenizer_(tokenizer), vocab_size_(vocab_size), end_tokens_(std::move(end_tokens)) {}

  absl::StatusOr<CompiledGrammar> Run(const GrammarSpec& spec, const std::stop_token& stop) {
    std::call_once(read_, [this] { vocabulary_ = GrammarVocabulary::Create(tokenizer_, vocab_size_, end_tokens_); });
    if (!vocabulary_.ok()) return vocabulary_.status();
    return CompileGrammar(spec, *vocabulary_, GrammarLimits(), stop);
  }

 private:
  const Tokenizer* const tokenizer_;
  const int64_t vocab_size_;
  const std::vector<int32_t> end_tokens_;
  std::once_flag read_;
  absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> vocabulary_;
};

}  // namespace

GrammarCompiler::CompileFunction CompileFor(const Tokenizer* tokenizer, int64_t vocab_size,
                                            std::vector<int32_t> end_tokens) {
  auto compile = std::make_shared<Compile>(tokenizer, vocab_size, std::move(end_tokens));
  return [compile](const GrammarSpec& spec, std::stop_token stop) { return compile->Run(spec, stop); };
}

}  // namespace berth
