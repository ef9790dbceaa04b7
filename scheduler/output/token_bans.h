// What a request's TokenRules say of a sequence's next token. Engine thread only.
#ifndef BERTH_SCHEDULER_OUTPUT_TOKEN_BANS_H_
#define BERTH_SCHEDULER_OUTPUT_TOKEN_BANS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "models/token_rules.h"
#include "scheduler/sequence.h"

namespace berth {

// Adds to `banned` each token whose n-gram with the end of `tokens` is in `text`: text[i, i + n) where its first n - 1
// are the last n - 1 of `tokens`. A token may be added several times. Reads `text` once. REQUIRES: n >= 1.
void BanRepeats(absl::Span<const int32_t> text, absl::Span<const int32_t> tokens, int64_t n,
                std::vector<int32_t>* banned);

// Sets sequence->banned and the rules' part of its logit_bias, for its next token. Stop tokens are banned too before
// min_tokens. Allocates only until the vectors have had their largest size. REQUIRES: the request has rules.
void ApplyTokenRules(Sequence* sequence);

}  // namespace berth

#endif  // BERTH_SCHEDULER_OUTPUT_TOKEN_BANS_H_
