// Proposes draft tokens for a sequence: tokens that may follow its newest one, for the next step to check. Engine
// thread only.
#ifndef BERTH_SCHEDULER_OUTPUT_DRAFTS_H_
#define BERTH_SCHEDULER_OUTPUT_DRAFTS_H_

#include "scheduler/sequence.h"

namespace berth {

// Fills sequence->drafts by prompt lookup, as many as its request allows; none for a request that a step cannot check
// drafts for. Its constraint may not allow them yet (OutputConstraint::KeepAllowed). If there are any, also keeps the
// states to return to when a draft is wrong. REQUIRES: the sequence decodes, and has not grown for the step.
void ProposeDrafts(Sequence* sequence);

}  // namespace berth

#endif  // BERTH_SCHEDULER_OUTPUT_DRAFTS_H_
