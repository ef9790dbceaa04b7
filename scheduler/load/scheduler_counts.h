// The scheduler's figures. Plain data.
#ifndef BERTH_SCHEDULER_LOAD_SCHEDULER_COUNTS_H_
#define BERTH_SCHEDULER_LOAD_SCHEDULER_COUNTS_H_

#include <cstdint>

namespace berth {

// What the metrics say. The first five are of now, the others since the start.
struct SchedulerCounts {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_paused = 0;      // sequences whose client does not read; they neither run nor wait
  int64_t num_new = 0;         // waiting sequences that never ran
  int64_t waiting_tokens = 0;  // tokens that the waiting sequences have to prefill
  int64_t num_preemptions = 0;
  int64_t num_swap_outs = 0;      // preemptions whose cache was swapped out
  int64_t num_recomputes = 0;     // preemptions whose cache was dropped; neither counts one that is being copied
  int64_t num_pauses = 0;         // of requests; one that ran is preempted
  int64_t num_retried_steps = 0;  // steps of one request alone, after a step of several failed
  int64_t prompt_tokens = 0;      // computed or found in the cache; recomputation not counted
  int64_t generation_tokens = 0;
  int64_t draft_tokens = 0;            // drafts checked
  int64_t accepted_draft_tokens = 0;   // drafts that the model chose too
  int64_t forced_tokens = 0;           // tokens that constraints forced: each saved a step
  int64_t prefix_queried_tokens = 0;   // tokens of prompts that looked for their prefix
  int64_t prefix_hit_tokens = 0;       // tokens whose cache they found
  int64_t prefix_replayed_tokens = 0;  // tokens that were known, but computed again from the state before them
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_LOAD_SCHEDULER_COUNTS_H_
