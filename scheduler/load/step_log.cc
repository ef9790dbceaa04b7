#include "scheduler/load/step_log.h"

namespace berth {

void StepLog::Begin(absl::Time now, const SchedulerCounts& counts, int64_t evicted_units) {
  start_ = now;
  record_ = {.number = num_steps_ + num_failed_steps_ + 1,
             .start_us = absl::ToUnixMicros(now),
             .running = counts.num_running,
             .waiting = counts.num_waiting,
             .preemptions = counts.num_preemptions,
             .swap_outs = counts.num_swap_outs,
             .evicted_units = evicted_units};
}

void StepLog::OnPlan(absl::Time now, const StepPlan& plan) {
  planned_ = now;
  if (plan.empty()) return;
  record_.plan_us = absl::ToInt64Microseconds(now - start_);
  record_.rows = static_cast<int64_t>(plan.rows.size());
  record_.decode_rows = plan.num_decode_rows;
  record_.tokens = plan.num_tokens;
  StepRecord begun = record_;
  begun.preemptions = begun.swap_outs = begun.evicted_units = 0;
  recorder_.Add(begun);
}

StepStats StepLog::OnRun(absl::Time now, const StepPlan& plan, const SchedulerCounts& counts, bool failed) {
  ran_ = now;
  record_.run_us = absl::ToInt64Microseconds(now - planned_);
  record_.failed = failed ? 1 : 0;
  ++(failed ? num_failed_steps_ : num_steps_);
  if (!failed) {
    const int64_t num_past_prompt = plan.num_rows_past_prompt();
    waits_.OnStep(now - start_, plan.num_tokens - num_past_prompt, num_past_prompt);
    waits_.OnPrefixes(counts.prefix_queried_tokens, counts.prefix_hit_tokens);
  }
  return {.duration = now - start_,
          .num_tokens = record_.tokens,
          .num_rows = record_.rows,
          .num_decode_rows = record_.decode_rows};
}

void StepLog::End(absl::Time now, const SchedulerCounts& counts, int64_t evicted_units, int64_t free_bytes) {
  record_.commit_us = absl::ToInt64Microseconds(now - ran_);
  record_.preemptions = counts.num_preemptions - record_.preemptions;
  record_.swap_outs = counts.num_swap_outs - record_.swap_outs;
  record_.evicted_units = evicted_units - record_.evicted_units;
  record_.free_bytes = free_bytes;
  recorder_.ReplaceNewest(record_);
}

void StepLog::OnEvents(absl::Span<const TokenEvent> events) {
  for (const TokenEvent& event : events) {
    if (event.finish == FinishReason::kNone || event.times.first_scheduled == absl::InfinitePast()) continue;
    waits_.OnSequenceEnd(event.times.finished - event.times.first_scheduled - event.times.paused);
  }
}

}  // namespace berth
