// Prompt lookup: finds draft tokens by looking for a sequence's last few tokens earlier in it (Saxena 2023;
// transformers' PromptLookupCandidateGenerator). Needs no model. Thread-safe.
#ifndef BERTH_SCHEDULER_OUTPUT_PROMPT_LOOKUP_H_
#define BERTH_SCHEDULER_OUTPUT_PROMPT_LOOKUP_H_

#include <cstdint>

#include "absl/types/span.h"

namespace berth {

// Returns the tokens, at most `limit`, that followed the latest earlier occurrence of the sequence's last 3 tokens, or
// else of its last 2. Empty when they do not occur. The result is a view into `tokens`.
absl::Span<const int32_t> LookUpDraft(absl::Span<const int32_t> tokens, int64_t limit);

}  // namespace berth

#endif  // BERTH_SCHEDULER_OUTPUT_PROMPT_LOOKUP_H_
