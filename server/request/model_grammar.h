// Compiles grammars for a real model's tokenizer.
#ifndef BERTH_SERVER_REQUEST_MODEL_GRAMMAR_H_
#define BERTH_SERVER_REQUEST_MODEL_GRAMMAR_H_

#include <cstdint>
#include <vector>

#include "server/request/grammar_compiler.h"
#include "text/tokenizer.h"

namespace berth {

// Returns what compiles for outputs of ids below `vocab_size` that end with one of `end_tokens`. The first call of the
// result also reads the tokenizer's vocabulary, which takes about a second for 128,000 tokens. Thread-safe.
// `tokenizer` must outlive the result and all that it compiles.
GrammarCompiler::CompileFunction CompileFor(const Tokenizer* tokenizer, int64_t vocab_size,
                                            std::vector<int32_t> end_tokens);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_MODEL_GRAMMAR_H_
