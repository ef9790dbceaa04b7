#include "scheduler/load/wait_estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/policy/fair_policy.h"
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

TEST(WaitEstimateTest, FollowsAChangeAndIgnoresOutliers) {
  WaitEstimator estimator;
  for (int i = 0; i < 50; ++i) estimator.OnStep(absl::Milliseconds(10), 0, 1);
  for (int i = 0; i < 3; ++i) {
    estimator.OnStep(absl::Seconds(10), 0, 1);
    EXPECT_NEAR(estimator.rates().decode_step_seconds, 0.010, 1e-9);
  }
  for (int i = 0; i < 16; ++i) estimator.OnStep(absl::Milliseconds(20), 0, 1);
  EXPECT_NEAR(estimator.rates().decode_step_seconds, 0.020, 1e-9);
  estimator.OnStep(-absl::Seconds(10), 0, 1);  // the clock was set back
  EXPECT_NEAR(estimator.rates().decode_step_seconds, 0.020, 1e-9);
}

// The first step may read the weights from the disk, or the process may be stopped in it.
TEST(WaitEstimateTest, ASlowFirstStepIsForgottenWithTheSecond) {
  for (const int64_t slow_tokens : {10, 512}) {
    for (const int64_t tokens : {10, 512}) {
      WaitEstimator estimator;
      estimator.OnStep(absl::Seconds(16), slow_tokens, 0);
      estimator.OnStep(absl::Milliseconds(tokens), tokens, 0);
      EXPECT_NEAR(estimator.rates().prefill_token_seconds, 0.001, 1e-9);
    }
  }
}

// The last chunk of a prompt may have one token, and take as long as a step that decodes.
TEST(WaitEstimateTest, StepsOfFewTokensSayLittle) {
  WaitEstimator estimator;
  for (int i = 0; i < 20; ++i) {
    estimator.OnStep(absl::Milliseconds(500), 500, 0);
    estimator.OnStep(absl::Milliseconds(20), 1, 0);
  }
  EXPECT_NEAR(estimator.rates().prefill_token_seconds, 0.001, 0.0001);
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

TEST(WaitEstimateTest, WithoutQueuesAllIsBeforeARequest) {
  const Backlog all = {.prefill_tokens = 100, .num_sequences = 7, .num_places = 2};
  const Backlog before = BacklogBefore(all, {}, TenantId("a"), 0);
  EXPECT_EQ(before.prefill_tokens, 100);
  EXPECT_EQ(before.num_sequences, 7);
  EXPECT_EQ(before.num_places, 2);
}

TEST(WaitEstimateTest, OnlyWhatItsTenantWouldNotOvertakeIsBeforeARequest) {
  const Backlog all = {.prefill_tokens = 1200, .num_sequences = 115, .num_places = 4};  // 200 and 5 of them run
  const std::vector<TenantQueue> queues = {
      {.tenant = TenantId("heavy"), .counter = 50, .sequence_cost = 10, .num_sequences = 100, .num_tokens = 900},
      {.tenant = TenantId("light"), .counter = 50, .sequence_cost = 10, .num_sequences = 10, .num_tokens = 100}};
  const auto sequences = [&](const char* tenant, int64_t priority = 0) {
    return BacklogBefore(all, queues, TenantId(tenant), priority).num_sequences;
  };
  EXPECT_EQ(sequences("light"), 5 + 10 + 10) << "as many of the other's as of its own";
  EXPECT_EQ(BacklogBefore(all, queues, TenantId("light"), 0).prefill_tokens, 200 + 100 + 90);
  EXPECT_EQ(sequences("heavy"), 5 + 100 + 10) << "the light one has no more";
  EXPECT_EQ(sequences("new"), 5);
  EXPECT_EQ(sequences("light", /*priority=*/1), 5) << "it goes before those of its tenant";
}

TEST(WaitEstimateTest, WeightsCountersAndCostsMoveALevel) {
  const Backlog all = {.num_sequences = 110};
  const TenantQueue heavy = {.tenant = TenantId("heavy"), .sequence_cost = 10, .num_sequences = 100};
  const TenantQueue light = {.tenant = TenantId("light"), .sequence_cost = 10, .num_sequences = 10};
  const auto before = [&](TenantQueue a, TenantQueue b) {
    return BacklogBefore(all, {{a, b}}, TenantId("light"), 0).num_sequences - 10;
  };
  TenantQueue other = heavy;
  EXPECT_EQ(before(other, light), 10);
  other.counter = 60;  // it is ahead by six sequences
  EXPECT_EQ(before(other, light), 4);
  other.counter = -60;
  EXPECT_EQ(before(other, light), 16);
  other = heavy;
  other.weight = 3;
  EXPECT_EQ(before(other, light), 30);
  other = heavy;
  other.sequence_cost = 40;  // of one sequence; that of ten of the light one pays for two and a half
  EXPECT_EQ(before(other, light), 2);
  other.sequence_cost = 0;  // not known: as the light one's
  EXPECT_EQ(before(other, light), 10);
}

// A server under a virtual clock, and what was predicted for each of its requests.
struct Simulation {
  struct Tenant {
    double weight = 1;
    int64_t part = 1;    // of the requests
    int64_t longer = 1;  // factor of its outputs
  };
  struct Load {
    int64_t max_running = 64;
    int64_t max_prompt = 30;
    int64_t max_output = 4;
    int64_t interval_ms = 100;  // between arrivals, on average
    int64_t arena = 4000;
    std::vector<Tenant> tenants = {};  // of fair shares; none: first come, first served
  };
  struct Result {
    double mean_wait = 0;
    double mean_error = 0;         // of the absolute errors
    double bias = 0;               // mean of predicted minus actual
    double too_long = 0;           // mean of what was predicted beyond the actual
    double too_long_in_order = 0;  // the same of a prediction that takes all that waits to be before the request
    double num_requests = 0;

    void Add(double predicted, double in_order, double actual) {
      mean_wait += actual;
      mean_error += std::abs(predicted - actual);
      bias += predicted - actual;
      too_long += std::max(0.0, predicted - actual);
      too_long_in_order += std::max(0.0, in_order - actual);
      ++num_requests;
    }
    Result Mean() const {
      Result mean = *this;
      for (double* sum : {&mean.mean_wait, &mean.mean_error, &mean.bias, &mean.too_long, &mean.too_long_in_order}) {
        *sum /= num_requests;
      }
      return mean;
    }
  };

  static Result Run(const Load& load) {
    std::vector<Result> results = RunTenants(load);
    return results.back();
  }

  // A result for each tenant, and the last of all requests.
  static std::vector<Result> RunTenants(const Load& load) {
    FairPolicy::Options fair;
    std::vector<int> lottery;
    for (size_t i = 0; i < load.tenants.size(); ++i) {
      fair.weights.by_tenant[std::to_string(i)] = load.tenants[i].weight;
      lottery.insert(lottery.end(), load.tenants[i].part, static_cast<int>(i));
    }
    FairPolicy policy(fair);
    SchedulerHarness server({StaticLayer()}, load.arena,
                            {.max_running = load.max_running,
                             .max_step_tokens = std::max<int64_t>(32, load.max_running),
                             .prefill_chunk_tokens = 16,
                             .max_sequence_tokens = 400,
                             .policy = lottery.empty() ? nullptr : &policy});
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
    std::map<RequestKey, double> in_order;
    std::map<RequestKey, bool> ended;
    absl::Time next = server.clock.Now();
    while (predicted.size() < 600 || !server.scheduler->empty()) {
      for (; predicted.size() < 600 && next <= server.clock.Now();) {
        Request request = server.MakeRequest(1 + random() % load.max_prompt, 1 + random() % load.max_output);
        if (!lottery.empty()) {
          const int tenant = lottery[random() % lottery.size()];
          request.cache_salt = std::to_string(tenant);
          request.max_tokens *= load.tenants[tenant].longer;
        }
        std::vector<TenantQueue> queues;
        server.scheduler->GetQueues(&queues);
        const Backlog before =
            BacklogBefore(server.scheduler->backlog(), queues, TenantId(request.cache_salt), request.priority);
        const absl::Duration wait = PredictWait(estimator.rates(), limits, before, 1);
        in_order[request.key] =
            absl::ToDoubleSeconds(PredictWait(estimator.rates(), limits, server.scheduler->backlog(), 1));
        predicted[server.Add(std::move(request))] = absl::ToDoubleSeconds(wait);
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
    std::vector<Result> results(load.tenants.size() + 1);
    for (const auto& [key, wait] : predicted) {
      const RequestTimes& times = server.records[key].times;
      const double actual = absl::ToDoubleSeconds(times.first_scheduled - times.arrival);
      const std::string& tenant = server.requests[key].cache_salt;
      if (!tenant.empty()) results[std::stoi(tenant)].Add(wait, in_order[key], actual);
      results.back().Add(wait, in_order[key], actual);
    }
    for (Result& result : results) result = result.Mean();
    return results;
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

// A tenant that asks for little does not wait for what another has waiting. If the prediction took all that waits to be
// before its requests, it would refuse them for nothing.
TEST(WaitEstimateTest, ATenantThatAsksForLittleIsNotPredictedToWaitForOthers) {
  for (const bool for_places : {false, true}) {
    SCOPED_TRACE(for_places);
    Simulation::Load load = {.interval_ms = 30};
    if (for_places) load = {.max_running = 4, .max_prompt = 5, .max_output = 60, .interval_ms = 60};
    load.tenants = {{.part = 1}, {.part = 20}};
    const Simulation::Result light = Simulation::RunTenants(load)[0];
    EXPECT_GT(light.num_requests, 10);
    EXPECT_GT(light.too_long_in_order, 0.5) << "the load is too light to tell";
    EXPECT_LT(light.too_long, 0.25 * light.too_long_in_order);
  }
}

TEST(WaitEstimateTest, AnIdleServerHasNoWait) {
  const Simulation::Result result = Simulation::Run({.max_prompt = 5, .max_output = 2, .interval_ms = 5000});
  EXPECT_EQ(result.mean_wait, 0);
  EXPECT_EQ(result.mean_error, 0);
}

}  // namespace
}  // namespace berth
