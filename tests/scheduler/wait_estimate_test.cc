#include "scheduler/wait_estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

TEST(WaitEstimateTest, PredictsNothingBeforeAMeasurement) {
  const WaitEstimator estimator;
  const Backlog backlog = {.prefill_tokens = 1 << 20, .num_sequences = 1000, .num_places = 1};
  EXPECT_EQ(PredictWait(estimator.rates(), {}, backlog, 1), absl::ZeroDuration());
  EXPECT_EQ(PredictPrefill(estimator.rates(), {}, 1 << 20, true), absl::ZeroDuration());
}

TEST(WaitEstimateTest, TellsAStepsOwnTimeFromThatOfItsTokens) {
  WaitEstimator estimator;
  for (int i = 0; i < 5; ++i) estimator.OnStep(absl::Milliseconds(10), 0, 3);
  for (int tokens : {100, 10, 400, 1}) {
    estimator.OnStep(absl::Milliseconds(10 + 2 * tokens), tokens, 3);
    EXPECT_NEAR(estimator.rates().prefill_token_seconds, 0.002, 1e-9);
  }
  EXPECT_NEAR(estimator.rates().decode_step_seconds, 0.010, 1e-9);
  const StepLimits limits = {.step_tokens = 512, .chunk_tokens = 100};
  // 1,000 tokens before it take two steps, and its own 250 three.
  EXPECT_NEAR(
      absl::ToDoubleSeconds(PredictWait(estimator.rates(), limits, {.prefill_tokens = 1000, .num_places = 64}, 1)),
      0.020 + 2.0, 1e-9);
  EXPECT_NEAR(absl::ToDoubleSeconds(PredictPrefill(estimator.rates(), limits, 250, false)), 0.030 + 0.5, 1e-9);
}

TEST(WaitEstimateTest, WaitsForAPlaceOnlyWhenAllAreTaken) {
  WaitEstimator estimator;
  estimator.OnSequenceEnd(absl::Seconds(8));
  const auto wait = [&](int64_t sequences, int64_t more) {
    return PredictWait(estimator.rates(), {}, {.num_sequences = sequences, .num_places = 4}, more);
  };
  EXPECT_EQ(wait(3, 1), absl::ZeroDuration());
  EXPECT_EQ(wait(4, 1), absl::Seconds(2));
  EXPECT_EQ(wait(6, 1), absl::Seconds(6));
  EXPECT_EQ(wait(3, 4), absl::Seconds(6)) << "its four sequences run together";
  EXPECT_EQ(wait(2, 100), absl::Seconds(4)) << "no more can end than there are";
}

TEST(WaitEstimateTest, FollowsAChangeAndForgetsAnOutlier) {
  WaitEstimator estimator;
  for (int i = 0; i < 50; ++i) estimator.OnStep(absl::Milliseconds(10), 0, 1);
  estimator.OnStep(absl::Seconds(10), 0, 1);
  EXPECT_GT(estimator.rates().decode_step_seconds, 1);
  for (int i = 0; i < 100; ++i) estimator.OnStep(absl::Milliseconds(20), 0, 1);
  EXPECT_NEAR(estimator.rates().decode_step_seconds, 0.020, 1e-4);
  estimator.OnStep(-absl::Seconds(10), 0, 1);  // the clock was set back
  EXPECT_GE(estimator.rates().decode_step_seconds, 0);
}

TEST(WaitEstimateTest, CachedPromptsCountForWhatTheyCompute) {
  WaitEstimator estimator;
  estimator.OnStep(absl::Milliseconds(100), 100, 0);
  estimator.OnPrefixes(1000, 750);
  EXPECT_EQ(estimator.rates().cached_ratio, 0.75);
  EXPECT_NEAR(absl::ToDoubleSeconds(PredictPrefill(estimator.rates(), {}, 1000, true)), 0.25, 1e-9);
  EXPECT_NEAR(absl::ToDoubleSeconds(PredictPrefill(estimator.rates(), {}, 1000, false)), 1, 1e-9);
  estimator.OnPrefixes(1000, 750);  // nothing new
  EXPECT_EQ(estimator.rates().cached_ratio, 0.75);
}

// A server under a virtual clock, and what was predicted for each of its requests.
struct Simulation {
  struct Load {
    int64_t max_running = 64;
    int64_t max_prompt = 30;
    int64_t max_output = 4;
    int64_t interval_ms = 100;  // between arrivals, on average
    int64_t arena = 4000;
  };
  struct Result {
    double mean_wait = 0;
    double mean_error = 0;  // of the absolute errors
    double bias = 0;        // mean of predicted minus actual
  };

  static Result Run(const Load& load) {
    SchedulerHarness server({StaticLayer()}, load.arena,
                            {.max_running = load.max_running,
                             .max_step_tokens = std::max<int64_t>(32, load.max_running),
                             .prefill_chunk_tokens = 16,
                             .max_sequence_tokens = 200});
    WaitEstimator estimator;
    server.runner.on_run = [&](const StepPlan& plan) {
      const bool prefills = plan.num_decode_rows < static_cast<int64_t>(plan.rows.size());
      const int64_t tokens = prefills ? plan.num_tokens - plan.num_decode_rows : 0;
      const absl::Duration time = absl::Milliseconds(10 + 2 * tokens);
      server.clock.Advance(time);
      estimator.OnStep(time, tokens, plan.num_decode_rows);
      return absl::OkStatus();
    };
    std::mt19937 random(3);
    const StepLimits limits = {.step_tokens = server.options.max_step_tokens, .chunk_tokens = 16};
    std::map<RequestKey, double> predicted;
    std::map<RequestKey, bool> ended;
    absl::Time next = server.clock.Now();
    while (predicted.size() < 600 || !server.scheduler->empty()) {
      for (; predicted.size() < 600 && next <= server.clock.Now();) {
        const absl::Duration wait = PredictWait(estimator.rates(), limits, server.scheduler->backlog(), 1);
        predicted[server.Add(1 + random() % load.max_prompt, 1 + random() % load.max_output)] =
            absl::ToDoubleSeconds(wait);
        next += absl::Milliseconds(random() % (2 * load.interval_ms));
      }
      if (server.scheduler->empty()) server.clock.Advance(next - server.clock.Now());
      server.Step();
      for (const auto& [key, wait] : predicted) {
        const RequestRecord& record = server.records[key];
        if (record.num_ends == 0 || std::exchange(ended[key], true)) continue;
        estimator.OnSequenceEnd(record.times.finished - record.times.first_scheduled);
      }
    }
    Result result;
    for (const auto& [key, wait] : predicted) {
      const RequestTimes& times = server.records[key].times;
      const double actual = absl::ToDoubleSeconds(times.first_scheduled - times.arrival);
      result.mean_wait += actual / 600;
      result.mean_error += std::abs(wait - actual) / 600;
      result.bias += (wait - actual) / 600;
    }
    return result;
  }
};

TEST(WaitEstimateTest, PredictsTheWaitForPrefill) {
  const Simulation::Result result = Simulation::Run({.interval_ms = 30});
  EXPECT_GT(result.mean_wait, 0.5) << "the load is too light to tell";
  EXPECT_LT(result.mean_error, 0.15 * result.mean_wait) << result.bias;
}

TEST(WaitEstimateTest, PredictsTheWaitForAPlace) {
  const Simulation::Result result =
      Simulation::Run({.max_running = 4, .max_prompt = 5, .max_output = 60, .interval_ms = 70});
  EXPECT_GT(result.mean_wait, 0.5);
  EXPECT_LT(result.mean_error, 0.25 * result.mean_wait) << result.bias;
}

TEST(WaitEstimateTest, PredictsTheWaitForCache) {
  const Simulation::Result result =
      Simulation::Run({.max_prompt = 40, .max_output = 40, .interval_ms = 60, .arena = 60});
  EXPECT_GT(result.mean_wait, 0.5);
  EXPECT_LT(result.mean_error, 0.4 * result.mean_wait) << result.bias;
}

TEST(WaitEstimateTest, AnIdleServerHasNoWait) {
  const Simulation::Result result = Simulation::Run({.max_prompt = 5, .max_output = 2, .interval_ms = 5000});
  EXPECT_EQ(result.mean_wait, 0);
  EXPECT_EQ(result.mean_error, 0);
}

}  // namespace
}  // namespace berth
