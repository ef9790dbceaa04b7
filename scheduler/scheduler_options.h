// The scheduler's settings. Plain data; Scheduler::Create checks them.
#ifndef BERTH_SCHEDULER_SCHEDULER_OPTIONS_H_
#define BERTH_SCHEDULER_SCHEDULER_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "base/steady_clock.h"

namespace berth {

class PrefixDisk;
class SaveSink;
class SchedulingPolicy;
class StepProgress;

// What swapping may use.
struct SwapOptions {
  int64_t host_tier_bytes = 0;              // host memory for swapped-out caches and for prefixes; 0: none
  int64_t copy_bytes_per_step = 256 << 20;  // the most bytes copied for one step, saves of sessions included
  bool beside_steps = false;                // copy on a thread of its own while a step runs; else before the step
  absl::Time (*copy_clock)() = SteadyNow;   // measures copies; tests give one that stands still: copies cost nothing
  bool always_copy = false;                 // for tests: copy, whatever the measured times say; see CopyCost
};

// Limits of the files of one tenant.
struct PrefixQuota {
  int64_t bytes = 0;                              // 0: no limit of its own
  absl::Duration age = absl::InfiniteDuration();  // since the last use
};

// Where prefixes go that the arena drops. Has no effect without a host tier.
struct PrefixTierOptions {
  PrefixDisk* disk = nullptr;  // null: host memory only. Must outlive the scheduler.
  int64_t disk_limit_bytes = 0;
  // The tenant's quota. Asked when a file is written, and now and then to find those that are too old. Empty: none.
  std::function<PrefixQuota(const std::string& salt)> quota;
  absl::Duration idle = absl::Minutes(1);  // offload a prefix that was not used for this long
};

struct SchedulerOptions {
  int64_t max_running = 64;            // sequences that hold a lease at once
  int64_t max_step_tokens = 512;       // token budget of one step; at least max_running
  int64_t prefill_chunk_tokens = 256;  // the most tokens of one sequence in one step; clipped to max_step_tokens.
  // While sequences decode, let a step prefill what takes it about this long (scheduler/policy/step_pacer.h). An
  // encoder's input is computed in one step all the same. 0: as many as the limits above allow.
  absl::Duration target_step_time = absl::ZeroDuration();
  // The longest sequence: prompt and output, or what the decoder of an encoder-decoder model holds. Must be set;
  // clipped to what the arena holds.
  int64_t max_sequence_tokens = 0;
  // A sequence that grows past this length is computed anew, because the model then computes all its tokens differently
  // (ModelInfo::rope_switch_length); 0: never.
  int64_t rope_switch_length = 0;
  bool share_prefixes = false;
  // The longest sequence that shares its prefix (ModelInfo::max_shareable_tokens); 0: no limit.
  int64_t max_shareable_tokens = 0;

  // Keep a prompt's recurrent states at multiples of this, and at the ends of prompts and outputs. 0: only there. A hit
  // computes the tokens since the latest kept state again. kAutoCheckpoints: at the ends of messages too, and on a grid
  // that follows the size of the states (scheduler/tiers/state_positions.h).
  static constexpr int64_t kAutoCheckpoints = -1;
  int64_t state_checkpoint_tokens = 0;
  // End chunks at multiples of prefill_chunk_tokens, and share whole chunks of prompts only. A hit then computes the
  // same chunks as a cold run: equal bits.
  bool aligned_prefill_chunks = false;
  int64_t compact_bytes_per_step = 0;  // the most bytes that compaction moves between two steps
  // For tests: after this many output tokens of a sequence, drop some of its cache and compute it again; 0: never.
  int64_t crop_every = 0;
  // Threads that compute the masks of constrained sequences beside a step; 0: the engine's own, before the step.
  int64_t mask_threads = 0;
  int64_t vocab_size = 0;            // of the masks; the engine sets it
  StepProgress* progress = nullptr;  // written by the scheduler for a watchdog; null: by none
  SwapOptions swap;
  PrefixTierOptions prefixes;
  SaveSink* save_sink = nullptr;  // takes the requests that are to be saved; null: none is. Must outlive the scheduler.
  SchedulingPolicy* policy = nullptr;  // null: first come, first served. Must outlive the scheduler.
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_SCHEDULER_OPTIONS_H_
