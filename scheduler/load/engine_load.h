// The engine's figures. Plain data.
#ifndef BERTH_SCHEDULER_LOAD_ENGINE_LOAD_H_
#define BERTH_SCHEDULER_LOAD_ENGINE_LOAD_H_

#include <cstdint>

#include "absl/time/time.h"
#include "cache/occupancy.h"
#include "scheduler/load/scheduler_counts.h"
#include "scheduler/tiers/host_tier.h"
#include "scheduler/tiers/prefix_tier.h"

namespace berth {

// The queues as of now, everything else as of the end of the last step. server/metrics/load_table.h exports every
// number of it.
struct EngineLoad {
  SchedulerCounts counts;  // the waiting requests include those that the engine has not taken yet
  HostTier host_tier;
  PrefixTier::Counts prefix_tier;
  int64_t disk_tier_limit_bytes = 0;         // limit of prefix_tier.disk_bytes; 0: there is no disk tier
  int64_t predicted_wait_ms = 0;             // of a new request that goes behind all that wait
  int64_t predicted_wait_new_tenant_ms = 0;  // the same if nothing else of its tenant waits
  // Since start.
  int64_t num_steps = 0;  // without failed ones
  int64_t num_failed_steps = 0;
  int64_t num_device_allocations = 0;  // see ModelRunner
  int64_t num_graph_launches = 0;
  int64_t num_graph_refusals = 0;
  Occupancy occupancy;
};

// One step's figures, for the histograms.
struct StepStats {
  absl::Duration duration;
  int64_t num_tokens = 0;
  int64_t num_rows = 0;
  int64_t num_decode_rows = 0;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_LOAD_ENGINE_LOAD_H_
