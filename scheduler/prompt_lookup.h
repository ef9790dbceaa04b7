// Drafts the tokens that may follow a sequence by looking for its last few tokens earlier in it (prompt lookup: Saxena
// 2023, transformers' PromptLookupCandidateGenerator). No model; a wrong draft costs a little work, never a token.
// Thread-safe.
#ifndef BERTH_SCHEDULER_PROMPT_LOOKUP_H_
#define BERTH_SCHEDULER_PROMPT_LOOKUP_H_

#include <cstdint>

#include "absl/types/span.h"

namespace berth {

// The at most `limit` tokens that followed the latest earlier occurrence of the sequence's last 3 tokens, or else of
// its last 2. Empty when there is none. A view into `tokens`.
absl::Span<const int32_t> LookUpDraft(absl::Span<const int32_t> tokens, int64_t limit);

}  // namespace berth

#endif  // BERTH_SCHEDULER_PROMPT_LOOKUP_H_
