// What the engine keeps of its steps: a record of each one (flight_recorder.h), their numbers, and the rates by which
// waits are predicted (wait_estimate.h). Engine thread only, except for recorder().
//
// Each step calls Begin, OnPlan, OnRun and End in this order. After an empty plan, the next step begins.
#ifndef BERTH_SCHEDULER_LOAD_STEP_LOG_H_
#define BERTH_SCHEDULER_LOAD_STEP_LOG_H_

#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "models/step.h"
#include "scheduler/load/engine_load.h"
#include "scheduler/load/flight_recorder.h"
#include "scheduler/load/scheduler_counts.h"
#include "scheduler/load/wait_estimate.h"
#include "scheduler/request.h"

namespace berth {

class StepLog {
 public:
  // `evicted_units`, here and in End: of all pools, since the start.
  void Begin(absl::Time now, const SchedulerCounts& counts, int64_t evicted_units);
  void OnPlan(absl::Time now, const StepPlan& plan);
  // The model has run the plan. A step that failed says nothing of what steps take.
  StepStats OnRun(absl::Time now, const StepPlan& plan, const SchedulerCounts& counts, bool failed);
  // The step's tokens are delivered.
  void End(absl::Time now, const SchedulerCounts& counts, int64_t evicted_units, int64_t free_bytes);

  // Takes how long the sequences held a place, or waited after a preemption, that end with these events.
  void OnEvents(absl::Span<const TokenEvent> events);

  const FlightRecorder& recorder() const { return recorder_; }
  const WaitRates& rates() const { return waits_.rates(); }
  int64_t num_steps() const { return num_steps_; }  // without failed ones
  int64_t num_failed_steps() const { return num_failed_steps_; }

 private:
  FlightRecorder recorder_;
  WaitEstimator waits_;
  int64_t num_steps_ = 0;
  int64_t num_failed_steps_ = 0;
  // The step under way.
  StepRecord record_;  // its preemptions, swap_outs and evicted_units are those before the step
  absl::Time start_;
  absl::Time planned_;
  absl::Time ran_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_LOAD_STEP_LOG_H_
