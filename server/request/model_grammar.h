// Compiles grammars for a real model's tokenizer.
#ifndef BERTH_SERVER_REQUEST_MODEL_GRAMMAR_H_
#define BERTH_SERVER_REQUEST_MODEL_GRAMMAR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/request/grammar_compiler.h"
#include "text/tokenizer.h"

namespace berth {

// Reads the tokenizer's vocabulary, which takes about a second for 128,000 tokens. Returns a thread-safe function that
// compiles grammars for outputs of ids below `vocab_size`, which end with one of `end_tokens`. Where the vocabulary
// cannot be used, that function returns why, and so does `status`. `tokenizer` must outlive the function and all that
// it compiles.
GrammarCompiler::CompileFunction CompileFor(const Tokenizer* tokenizer, int64_t vocab_size,
                                            absl::Span<const int32_t> end_tokens, absl::Status* status);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_MODEL_GRAMMAR_H_
