// Compiles grammars for a real model's tokenizer.
#ifndef BERTH_SERVER_REQUEST_MODEL_GRAMMAR_H_
#define BERTH_SERVER_REQUEST_MODEL_GRAMMAR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/request/grammar_compiler.h"
#include "text/tokenizer.h"

namespace berth {

// Reads the tokenizer's vocabulary, which takes about a second for 128,000 tokens. Returns what compiles for outputs of
// ids below `vocab_size` that end with one of `end_tokens`; it may be called from any thread. INVALID_ARGUMENT: the
// vocabulary cannot be used.
absl::StatusOr<GrammarCompiler::CompileFunction> CompileFor(const Tokenizer* tokenizer, int64_t vocab_size,
                                                            absl::Span<const int32_t> end_tokens);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_MODEL_GRAMMAR_H_
