#include "scheduler/load/step_log.h"

#include <gtest/gtest.h>

#include <vector>

namespace berth {
namespace {

// A plan of `decode` rows past their prompts and one of `prefill` tokens.
StepPlan PlanOf(int64_t decode, int64_t prefill) {
  static const std::vector<int32_t> kTokens(100);
  StepPlan plan;
  for (int64_t i = 0; i <= decode; ++i) {
    StepRow& row = plan.rows.emplace_back();
    row.prompt_length = i < decode ? 10 : 200;
    row.start = i < decode ? 10 : 0;
    row.tokens = absl::MakeSpan(kTokens).first(static_cast<size_t>(i < decode ? 1 : prefill));
  }
  plan.num_decode_rows = decode;
  plan.num_tokens = decode + prefill;
  return plan;
}

class StepLogTest : public ::testing::Test {
 protected:
  // A step that is planned in 1 ms, runs for `run`, and commits in 2 ms.
  StepStats Step(const StepPlan& plan, absl::Duration run, bool failed = false) {
    log_.Begin(now_, counts_, /*evicted_units=*/evicted_);
    log_.OnPlan(now_ += absl::Milliseconds(1), plan);
    const StepStats stats = log_.OnRun(now_ += run, plan, counts_, failed);
    log_.End(now_ += absl::Milliseconds(2), counts_, evicted_, /*free_bytes=*/7);
    return stats;
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  SchedulerCounts counts_;
  int64_t evicted_ = 0;
  StepLog log_;
};

TEST_F(StepLogTest, ARecordHasWhatTheStepAddedToTheCounts) {
  counts_ = {.num_running = 3, .num_waiting = 4, .num_preemptions = 10, .num_swap_outs = 20};
  const StepPlan plan = PlanOf(2, 50);
  log_.Begin(now_, counts_, /*evicted_units=*/30);
  log_.OnPlan(now_ += absl::Milliseconds(1), plan);
  StepRecord record = {.number = 1,
                       .start_us = 1000000000,
                       .plan_us = 1000,
                       .rows = 3,
                       .decode_rows = 2,
                       .tokens = 52,
                       .running = 3,
                       .waiting = 4};
  EXPECT_EQ(log_.recorder().Latest(), std::vector<StepRecord>{record});  // a crash would write this record
  const StepStats stats = log_.OnRun(now_ += absl::Milliseconds(5), plan, counts_, /*failed=*/false);
  EXPECT_EQ(stats.duration, absl::Milliseconds(6));
  EXPECT_EQ(stats.num_rows, 3);
  EXPECT_EQ(stats.num_decode_rows, 2);
  EXPECT_EQ(stats.num_tokens, 52);
  counts_ = {.num_preemptions = 11, .num_swap_outs = 22};
  log_.End(now_ += absl::Milliseconds(2), counts_, /*evicted_units=*/33, /*free_bytes=*/44);
  record.run_us = 5000;
  record.commit_us = 2000;
  record.preemptions = 1;
  record.swap_outs = 2;
  record.evicted_units = 3;
  record.free_bytes = 44;
  EXPECT_EQ(log_.recorder().Latest(), std::vector<StepRecord>{record});
}

TEST_F(StepLogTest, AnEmptyPlanIsNoStep) {
  log_.Begin(now_, counts_, 0);
  log_.OnPlan(now_, StepPlan());
  EXPECT_TRUE(log_.recorder().Latest().empty());
  Step(PlanOf(1, 1), absl::Milliseconds(1));
  EXPECT_EQ(log_.recorder().Latest().at(0).number, 1);
}

TEST_F(StepLogTest, AFailedStepIsCountedAndSaysNothingOfTimes) {
  Step(PlanOf(1, 50), absl::Seconds(10), /*failed=*/true);
  EXPECT_EQ(log_.num_failed_steps(), 1);
  EXPECT_EQ(log_.num_steps(), 0);
  EXPECT_EQ(log_.rates().prefill_token_seconds, 0);
  EXPECT_EQ(log_.recorder().Latest().at(0).failed, 1);
  Step(PlanOf(0, 50), absl::Milliseconds(99));
  EXPECT_EQ(log_.num_steps(), 1);
  EXPECT_DOUBLE_EQ(log_.rates().prefill_token_seconds, 0.002);  // 100 ms for 50 tokens
  EXPECT_EQ(log_.recorder().Latest().at(1).number, 2);
}

TEST_F(StepLogTest, SequencesThatRanAreMeasuredAtTheirEnds) {
  std::vector<TokenEvent> events(3);
  events[0].times = {.first_scheduled = now_, .finished = now_ + absl::Seconds(9)};  // no end
  events[1].finish = FinishReason::kCancelled;                                       // it never ran
  events[2].finish = FinishReason::kStop;
  events[2].times = {.first_scheduled = now_, .finished = now_ + absl::Seconds(8), .paused = absl::Seconds(5)};
  log_.OnEvents(events);
  EXPECT_DOUBLE_EQ(log_.rates().sequence_seconds, 3);
}

}  // namespace
}  // namespace berth
