#include "scheduler/output/drafts.h"

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "scheduler/output/prompt_lookup.h"

namespace berth {

void ProposeDrafts(Sequence* sequence) {
  const Request& request = sequence->request;
  const SamplingParams& sampling = request.sampling;
  // The model must choose the likeliest token whatever came before, and nothing may be asked of the tokens one by one.
  const bool plain = sampling.temperature == 0 && sampling.num_logprobs < 0 && sampling.repetition_penalty == 1 &&
                     sampling.presence_penalty == 0 && sampling.frequency_penalty == 0 && request.rules.empty();
  if (request.draft_tokens == 0 || !plain || sequence->group != nullptr) return;
  if (sequence->num_generated() < request.min_tokens) return;
  // The last token of the output is never a draft: it may be forced, and nothing follows it.
  const int64_t limit = std::min(request.draft_tokens, request.max_tokens - sequence->num_generated() - 2);
  absl::Span<const int32_t> drafts = LookUpDraft(sequence->tokens, limit);
  if (sequence->constraint.applies()) {
    // Nothing may follow the end, so it is never a draft.
    const auto end =
        std::find_if(drafts.begin(), drafts.end(), [&](int32_t token) { return sequence->StopsAt(token); });
    drafts = drafts.first(end - drafts.begin());
  }
  sequence->drafts.assign(drafts.begin(), drafts.end());
  // States cannot be cropped: when the model disagrees, the lease goes back to this snapshot.
  if (!drafts.empty()) sequence->lease.SnapshotStates(/*keep=*/1);
}

}  // namespace berth
