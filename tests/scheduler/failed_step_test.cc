// A failed step ends the request that fails it, and no other: the others keep their tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tests/scheduler/scheduler_harness.h"
#include "tests/testing/mix.h"

namespace berth {
namespace {

const Scheduler::Options kOptions = {
    .max_running = 8, .max_step_tokens = 32, .prefill_chunk_tokens = 8, .max_sequence_tokens = 1000};

const absl::Status kError = absl::InternalError("this row is more than the model can bear");

// Overwrites what the step would have written, as a kernel that fails half-way may. Then fails.
absl::Status FailAndSpoil(const StepPlan& plan, SchedulerHarness* h) {
  std::byte* const base = h->tiny.cache->storage().base();
  for (const StepRow& row : plan.rows) {
    for (const LayerCacheSlot& slot : h->tiny.cache->plan().layers) {
      const CachePlan& cache = h->tiny.cache->plan();
      if (slot.state_group >= 0) {
        const int64_t bytes = cache.groups[slot.state_group].unit_bytes;
        std::fill_n(base + row.lease->state_unit(slot.state_group), bytes, std::byte{0x5a});
      }
      if (slot.kv_group < 0) continue;
      const int64_t key_bytes = cache.groups[slot.kv_group].kv.key_dim * 4;
      for (int64_t t = row.start; t < row.start + row.num_tokens(); ++t) {
        const int64_t unit = row.lease->blocks(slot.kv_group).At(t / cache.block_tokens);
        std::fill_n(base + unit + slot.key_offset + t % cache.block_tokens * key_bytes, 4, std::byte{0x5a});
      }
    }
  }
  return kError;
}

// The seed tells whose row it is: that of the request, plus the output.
bool Holds(const StepPlan& plan, RequestKey key) {
  return std::any_of(plan.rows.begin(), plan.rows.end(),
                     [key](const StepRow& row) { return row.sampling->seed == key; });
}

// Steps that hold a row of `key` fail, from the time when it has `from` tokens.
void FailWith(RequestKey key, int64_t from, SchedulerHarness* h, int64_t* num_failures) {
  h->runner.on_run = [=](const StepPlan& plan) {
    for (const StepRow& row : plan.rows) {
      if (row.sampling->seed != key || row.start + static_cast<int64_t>(row.tokens.size()) < from) continue;
      ++*num_failures;
      return FailAndSpoil(plan, h);
    }
    return absl::OkStatus();
  };
}

class FailedStep : public testing::TestWithParam<std::vector<LayerCacheSpec>> {};

INSTANTIATE_TEST_SUITE_P(Caches, FailedStep,
                         testing::Values(std::vector<LayerCacheSpec>{StaticLayer()},
                                         std::vector<LayerCacheSpec>{StaticLayer(), SlidingLayer(6),
                                                                     RecurrentLayer()}));

TEST_P(FailedStep, EndsOnlyTheRequestThatFailsIt) {
  for (const int64_t from : {1, 10, 20}) {  // in its first chunk, in a later one, past its prompt
    for (RequestKey guilty = 1; guilty <= 4; ++guilty) {
      SCOPED_TRACE(testing::Message() << "request " << guilty << " from token " << from);
      SchedulerHarness h(GetParam(), 400, kOptions);
      for (int i = 0; i < 4; ++i) h.Add(12, 30);
      int64_t num_failures = 0;
      FailWith(guilty, from, &h, &num_failures);
      h.RunToEnd();
      for (RequestKey key = 1; key <= 4; ++key) {
        EXPECT_EQ(h.records[key].finish, key == guilty ? FinishReason::kError : FinishReason::kLength) << key;
      }
      EXPECT_EQ(h.records[guilty].error, kError);
      EXPECT_EQ(num_failures, 2);  // the shared step, and its own
      h.ExpectAllEnded();
    }
  }
}

TEST_P(FailedStep, TwoAtFaultAreBothFound) {
  SchedulerHarness h(GetParam(), 400, kOptions);
  for (int i = 0; i < 5; ++i) h.Add(12, 30);
  h.runner.on_run = [&](const StepPlan& plan) {
    return Holds(plan, 2) || Holds(plan, 3) ? FailAndSpoil(plan, &h) : absl::OkStatus();
  };
  h.RunToEnd();
  for (RequestKey key = 1; key <= 5; ++key) {
    EXPECT_EQ(h.records[key].finish, key == 2 || key == 3 ? FinishReason::kError : FinishReason::kLength) << key;
  }
  h.ExpectAllEnded();
}

TEST_P(FailedStep, OnceIsNobodysFault) {
  SchedulerHarness h(GetParam(), 400, kOptions);
  for (int i = 0; i < 4; ++i) h.Add(12, 30);
  int64_t step = 0;
  h.runner.on_run = [&](const StepPlan& plan) { return ++step == 9 ? FailAndSpoil(plan, &h) : absl::OkStatus(); };
  h.RunToEnd();
  for (RequestKey key = 1; key <= 4; ++key) EXPECT_EQ(h.records[key].finish, FinishReason::kLength) << key;
  EXPECT_EQ(h.scheduler->counts().num_preemptions, 4);
  EXPECT_GE(h.scheduler->counts().num_retried_steps, 4) << "at least one of each request";
  EXPECT_LE(h.scheduler->counts().num_retried_steps, step - 9) << "no other step counts";
  h.ExpectAllEnded();
}

// Steps of several requests fail, those of one do not: as when memory is short. The cost is bounded, so they end.
TEST_P(FailedStep, WhatNoRequestFailsAloneEndsThemInTheThirdStep) {
  SchedulerHarness h(GetParam(), 400, kOptions);
  for (int i = 0; i < 4; ++i) h.Add(12, 30);
  int64_t num_failures = 0;
  h.runner.on_run = [&](const StepPlan& plan) {
    if (plan.rows.size() < 2) return absl::OkStatus();
    ++num_failures;
    return FailAndSpoil(plan, &h);
  };
  h.RunToEnd();
  EXPECT_EQ(num_failures, 3);
  for (RequestKey key = 1; key <= 4; ++key) EXPECT_EQ(h.records[key].error, kError) << key;
  h.ExpectAllEnded();
}

TEST_P(FailedStep, ALostDeviceEndsThemAll) {
  SchedulerHarness h(GetParam(), 400, kOptions);
  for (int i = 0; i < 4; ++i) h.Add(12, 30);
  h.runner.on_run = [](const StepPlan&) { return absl::DataLossError("lost"); };
  h.Step();
  for (RequestKey key = 1; key <= 4; ++key) EXPECT_EQ(h.records[key].error, absl::DataLossError("lost")) << key;
  EXPECT_TRUE(h.scheduler->empty());
}

TEST_P(FailedStep, RequestsThatArriveMeanwhileWaitUntilTheFaultIsFound) {
  SchedulerHarness h(GetParam(), 400, kOptions);
  for (int i = 0; i < 3; ++i) h.Add(12, 30);
  int64_t num_failures = 0;
  FailWith(3, 1, &h, &num_failures);
  while (num_failures == 0) h.Step();
  const RequestKey late = h.Add(12, 30);
  for (bool found = false; !found && !h.scheduler->empty();) {
    h.Step();
    found = h.records[3].num_ends > 0;
    if (!found) {
      EXPECT_EQ(h.shapes.size(), 1u);
    }
  }
  EXPECT_TRUE(h.records[late].tokens.empty());
  h.RunToEnd();
  EXPECT_EQ(h.records[late].finish, FinishReason::kLength);
  h.ExpectAllEnded();
}

// With prefixes shared, several outputs, beams, drafts, little room, and cancellations while suspects wait.
TEST_P(FailedStep, RandomSchedulesEndOnlyThoseAtFault) {
  int64_t num_ended = 0;  // of those at fault
  for (uint64_t seed = 0; seed < 150 && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    uint64_t state = seed;
    const auto random = [&state](uint64_t n) { return (state = Mix(state + 1)) % n; };
    Scheduler::Options options = kOptions;
    options.share_prefixes = random(2) == 0;
    options.state_checkpoint_tokens = 4;
    SchedulerHarness h(GetParam(), random(2) == 0 ? 40 : 400, options);
    std::set<uint64_t> guilty;
    std::set<RequestKey> cancelled;
    for (int i = 0; i < 6; ++i) {
      Request request = h.MakeRequest(1 + static_cast<int64_t>(random(20)), 1 + static_cast<int64_t>(random(20)));
      // Seeds far apart, since outputs add theirs.
      request.sampling.seed = request.key * 100;
      if (random(2) == 0) std::fill(request.prompt.begin(), request.prompt.end() - 1, 7);
      if (random(3) == 0) request.draft_tokens = 3;
      if (random(4) == 0) request.num_outputs = 2;
      if (random(4) == 0) guilty.insert(request.key);
      if (h.scheduler->CheckRequest(request).ok()) h.Add(request);
    }
    const int64_t from = static_cast<int64_t>(random(30));
    h.runner.on_run = [&](const StepPlan& plan) {
      for (const StepRow& row : plan.rows) {
        if (guilty.contains(row.sampling->seed / 100) && row.start + static_cast<int64_t>(row.tokens.size()) >= from) {
          return FailAndSpoil(plan, &h);
        }
      }
      return absl::OkStatus();
    };
    for (int i = 0; i < 1000 && !h.scheduler->empty(); ++i) {
      if (random(30) == 0) {
        const RequestKey key = 1 + random(6);
        cancelled.insert(key);
        h.scheduler->Cancel(key, FinishReason::kCancelled);
      }
      h.Step();
      if (HasFailure()) return;
    }
    h.RunToEnd();
    for (const auto& [key, request] : h.requests) {
      num_ended += h.records[key].error == kError ? 1 : 0;
      if (guilty.contains(key) || cancelled.contains(key)) continue;
      EXPECT_TRUE(h.records[key].error.ok()) << "request " << key << ": " << h.records[key].error;
    }
    h.ExpectAllEnded();
  }
  EXPECT_GT(num_ended, 10);
}

}  // namespace
}  // namespace berth
