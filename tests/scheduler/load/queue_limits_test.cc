#include "scheduler/load/queue_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "scheduler/refusal.h"

namespace berth {
namespace {

// A server that prefills a token in 1 ms, with 4 places. A sequence holds a place for 8 s.
QueueState Measured(int64_t prefill_tokens, int64_t num_sequences = 0) {
  return {.num_requests = num_sequences,
          .num_tokens = prefill_tokens,
          .backlog = {.prefill_tokens = prefill_tokens, .num_sequences = num_sequences, .num_places = 4},
          .rates = {.prefill_token_seconds = 0.001, .sequence_seconds = 8},
          .step = {.step_tokens = 512, .chunk_tokens = 256}};
}

Refusal RefusalIn(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  return RefusalOf(status).value_or(Refusal());
}

TEST(QueueLimitsTest, AFullQueueTakesNoMore) {
  const QueueLimits limits = {.max_requests = 3};
  QueueState queue;
  queue.num_requests = 2;
  EXPECT_TRUE(CheckQueue(limits, queue, {}).ok());
  queue.num_requests = 3;
  EXPECT_EQ(RefusalIn(CheckQueue(limits, queue, {})),
            (Refusal{.reason = RefusalReason::kQueueFull, .setting = "max_queue", .limit = "3", .value = "4"}));
  queue = Measured(6000, 6);
  EXPECT_EQ(RefusalIn(CheckQueue(limits, queue, {})).retry_after, absl::Seconds(1)) << "6 s for 6 requests";
}

TEST(QueueLimitsTest, CountsTheTokensThatWait) {
  const QueueLimits limits = {.max_tokens = 1000};
  EXPECT_TRUE(CheckQueue(limits, Measured(600), {.num_tokens = 400}).ok());
  EXPECT_EQ(RefusalIn(CheckQueue(limits, Measured(600), {.num_tokens = 900})),
            (Refusal{.reason = RefusalReason::kQueuedTokens,
                     .retry_after = absl::Milliseconds(500),
                     .setting = "max_queued_tokens",
                     .limit = "1000",
                     .value = "1500"}));
  // A prompt that never fits is not told to come back.
  EXPECT_EQ(RefusalIn(CheckQueue(limits, Measured(0), {.num_tokens = 1001})).retry_after, absl::ZeroDuration());
  EXPECT_TRUE(CheckQueue({}, Measured(1 << 30), {.num_tokens = 1 << 30}).ok()) << "without a limit";
}

TEST(QueueLimitsTest, RefusesAWaitThatIsTooLong) {
  const QueueLimits limits = {.max_wait = absl::Seconds(2)};
  EXPECT_TRUE(CheckQueue(limits, Measured(2000), {.num_tokens = 9999}).ok()) << "its own tokens do not wait";
  EXPECT_EQ(RefusalIn(CheckQueue(limits, Measured(3500), {})), (Refusal{.reason = RefusalReason::kWait,
                                                                        .retry_after = absl::Milliseconds(1500),
                                                                        .setting = "max_wait",
                                                                        .limit = "2s",
                                                                        .value = "3.5s"}));
  EXPECT_TRUE(CheckQueue(limits, Measured(0, 4), {}).ok()) << "one has to end: 2 s";
  EXPECT_EQ(RefusalIn(CheckQueue(limits, Measured(0, 6), {})).value, "6s");
  EXPECT_EQ(RefusalIn(CheckQueue(limits, Measured(2001), {})).retry_after, absl::Milliseconds(100)) << "not at once";
}

TEST(QueueLimitsTest, RefusesWhatCannotMeetItsDeadline) {
  const auto check = [](const QueueState& queue, int64_t tokens, absl::Duration left) {
    return CheckQueue({}, queue, {.num_tokens = tokens, .time_left = left});
  };
  EXPECT_TRUE(check(Measured(1000), 500, absl::Milliseconds(1500)).ok());
  EXPECT_EQ(RefusalIn(check(Measured(1000), 500, absl::Milliseconds(1499))),
            (Refusal{.reason = RefusalReason::kDeadline,
                     .retry_after = absl::Milliseconds(100),
                     .limit = "1.499s",
                     .value = "1.5s"}));
  EXPECT_EQ(RefusalIn(check(Measured(1000), 500, absl::Milliseconds(800))).retry_after, absl::Milliseconds(700));
  // Its own prompt takes too long, however short the queue.
  EXPECT_EQ(RefusalIn(check(Measured(1), 500, absl::Milliseconds(400))).retry_after, absl::Milliseconds(100));
  EXPECT_TRUE(check(Measured(1000), 500, absl::InfiniteDuration()).ok());
  EXPECT_TRUE(check(Measured(1000), 500, -absl::Seconds(1)).ok()) << "it ends with DEADLINE_EXCEEDED";
}

// If the first step was slow, only others can show that, and they must be tried for that.
TEST(QueueLimitsTest, TriesARequestThatNothingIsBefore) {
  WaitEstimator estimator;
  estimator.OnStep(absl::Seconds(16), 10, 0);
  const QueueLimits limits = {.max_wait = absl::Seconds(1)};
  const QueueRequest request = {.num_tokens = 100, .time_left = absl::Seconds(60)};
  QueueState queue = Measured(0);
  queue.rates = estimator.rates();
  EXPECT_TRUE(CheckQueue(limits, queue, request).ok()) << "an idle server";
  queue.backlog.num_sequences = 3;
  EXPECT_TRUE(CheckQueue(limits, queue, request).ok()) << "three of four places decode, and measure no prefill";
  queue.backlog.prefill_tokens = 1;
  EXPECT_EQ(RefusalIn(CheckQueue({}, queue, request)).reason, RefusalReason::kDeadline) << "one is tried at a time";
  estimator.OnStep(absl::Milliseconds(100), 100, 0);
  queue.rates = estimator.rates();
  EXPECT_TRUE(CheckQueue(limits, queue, request).ok()) << "the first step is forgotten";
  // All places are taken: the sequences in them end, and correct what is known of their time.
  queue = Measured(0, 6);
  EXPECT_EQ(RefusalIn(CheckQueue({}, queue, {.time_left = absl::Seconds(1)})).reason, RefusalReason::kDeadline);
}

TEST(QueueLimitsTest, PredictsNothingBeforeAMeasurement) {
  QueueState queue = Measured(1 << 30, 1000);
  queue.num_requests = 0;
  queue.rates = {};
  const QueueLimits limits = {.max_wait = absl::Nanoseconds(1)};
  EXPECT_TRUE(CheckQueue(limits, queue, {.num_tokens = 1 << 20, .time_left = absl::Nanoseconds(1)}).ok());
}

}  // namespace
}  // namespace berth
