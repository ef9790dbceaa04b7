// Runs a model's largest steps before it serves: so that what does not fit fails at the start, with a message, and not
// under load. The first steps also load the device's kernels and record its graphs. No torch here; one thread.
#ifndef BERTH_MODELS_WARM_UP_H_
#define BERTH_MODELS_WARM_UP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "cache/spec.h"
#include "cache/storage.h"
#include "models/model_runner.h"

namespace berth {

struct WarmUpOptions {
  int64_t max_running = 1;           // rows of the largest decode step
  int64_t max_step_tokens = 1;       // tokens of the largest step
  int64_t prefill_chunk_tokens = 1;  // of one row
  int64_t max_sequence_tokens = 1;   // prompt and output
  int64_t max_drafts = 0;            // draft tokens of one row
  bool graphs = false;               // run decode steps of GraphRowsUpTo's rows until their graphs are recorded
};

struct WarmUpCounts {
  int64_t prefill_tokens = 0;  // of the largest prefill; fewer than max_step_tokens where the arena holds no more
  int64_t decode_rows = 0;     // of the largest decode step
  int64_t draft_tokens = 0;    // of the step with the most drafts
  int64_t graphs = 0;          // recorded
};

// Runs the steps in a cache of its own over `storage`, whose content is then undefined. Returns what ran. Errors are
// the runner's and the storage's, with a message that says what to lower. REQUIRES: no other thread uses the runner or
// the storage.
absl::StatusOr<WarmUpCounts> WarmUp(const CachePlan& plan, ArenaStorage* storage, ModelRunner* runner,
                                    const WarmUpOptions& options);

}  // namespace berth

#endif  // BERTH_MODELS_WARM_UP_H_
