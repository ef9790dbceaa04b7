// What tenants get of a loaded scheduler under FairPolicy, on a virtual clock. ./dev bench fairness measures the same
// of a running server.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/policy/fair_policy.h"
#include "tests/scheduler/policy/fair_simulation.h"

namespace berth {
namespace {

constexpr absl::Duration kWarmUp = absl::Seconds(10);
constexpr absl::Duration kTime = absl::Seconds(120);

// More than the server of a simulation can take: it ends about 190 requests of the default lengths in a second.
constexpr double kManyPerSecond = 400;

TEST(Fairness, TwoTenantsAtAHundredToOneGetEqualShares) {
  FairPolicy policy({});
  FairSimulation simulation(&policy, {{.name = "light", .rate = kManyPerSecond},
                                      {.name = "heavy", .rate = 100 * kManyPerSecond, .max_waiting = 5000}});
  simulation.Run(kWarmUp);
  simulation.ResetReports();
  simulation.Run(kTime);
  EXPECT_NEAR(simulation.Share("light"), 0.5, 0.05 * 0.5);
  EXPECT_NEAR(simulation.Share("heavy"), 0.5, 0.05 * 0.5);
}

TEST(Fairness, FirstComeFirstServedWouldNotDoThat) {
  FcfsPolicy policy;
  FairSimulation simulation(&policy, {{.name = "light", .rate = kManyPerSecond},
                                      {.name = "heavy", .rate = 100 * kManyPerSecond, .max_waiting = 5000}});
  simulation.Run(kWarmUp);
  simulation.ResetReports();
  simulation.Run(kTime);
  EXPECT_LT(simulation.Share("light"), 0.2) << "the simulation is too easy";
}

TEST(Fairness, ATenantBelowItsShareGetsAllItAsksForAndOthersTheRest) {
  FairPolicy policy({});
  FairSimulation simulation(
      &policy, {{.name = "light", .rate = 10}, {.name = "heavy", .rate = 100 * kManyPerSecond, .max_waiting = 5000}});
  simulation.Run(kWarmUp);
  simulation.ResetReports();
  simulation.Run(kTime);
  const TenantReport& light = simulation.reports["light"];
  EXPECT_NEAR(static_cast<double>(light.ended), static_cast<double>(light.offered), 0.02 * light.offered);
  EXPECT_LT(light.longest_wait, absl::Seconds(1)) << "the heavy tenant has minutes of work in the queue";

  FcfsPolicy fcfs;
  FairSimulation alone(&fcfs, {{.name = "heavy", .rate = 100 * kManyPerSecond, .max_waiting = 5000}});
  alone.Run(kWarmUp);
  alone.ResetReports();
  alone.Run(kTime);
  EXPECT_GT(simulation.TotalCost(), 0.99 * alone.TotalCost());
}

TEST(Fairness, TenEqualTenantsGetEqualShares) {
  for (const bool mixed : {false, true}) {
    FairPolicy policy({});
    std::vector<SimulatedTenant> tenants;
    for (int i = 0; i < 10; ++i) {
      SimulatedTenant& tenant = tenants.emplace_back();
      tenant = {.name = absl::StrCat(i), .rate = kManyPerSecond};
      if (!mixed) continue;
      // From many short chats to few long documents.
      tenant.longest_prompt = 10 + 40 * i;
      tenant.longest_output = 5 + 10 * (9 - i);
    }
    FairSimulation simulation(&policy, tenants);
    simulation.Run(kWarmUp);
    simulation.ResetReports();
    simulation.Run(kTime);
    EXPECT_GE(simulation.Jain(), 0.95) << (mixed ? "mixed lengths" : "equal lengths");
  }
}

TEST(Fairness, SharesFollowWeights) {
  FairPolicy policy({.weights = {.by_tenant = {{"three", 3}}}});
  FairSimulation simulation(&policy, {{.name = "one", .rate = 10 * kManyPerSecond, .max_waiting = 1000},
                                      {.name = "three", .rate = kManyPerSecond}});
  simulation.Run(kWarmUp);
  simulation.ResetReports();
  simulation.Run(kTime);
  EXPECT_NEAR(simulation.Share("one"), 0.25, 0.05 * 0.25);
  EXPECT_NEAR(simulation.Share("three"), 0.75, 0.05 * 0.75);

  policy.SetWeights({.by_tenant = {{"one", 4}}});
  simulation.Run(kWarmUp);
  simulation.ResetReports();
  simulation.Run(kTime);
  EXPECT_NEAR(simulation.Share("one"), 0.8, 0.05 * 0.8);
}

// Step for step, also when the cache is too small for what runs.
TEST(Fairness, ASingleTenantSeesFirstComeFirstServed) {
  for (const int64_t arena_blocks : {4000, 60}) {
    FairPolicy fair({});
    FcfsPolicy fcfs;
    const std::vector<SimulatedTenant> tenants = {{.name = "alone", .rate = kManyPerSecond}};
    FairSimulation a(&fair, tenants, arena_blocks);
    FairSimulation b(&fcfs, tenants, arena_blocks);
    a.Run(kTime);
    b.Run(kTime);
    EXPECT_EQ(a.order, b.order);
    EXPECT_EQ(a.num_steps, b.num_steps);
    EXPECT_EQ(a.num_tokens, b.num_tokens);
    EXPECT_GE(a.Cost("alone"), 0.99 * b.Cost("alone"));
    if (arena_blocks < 100) {
      EXPECT_GT(a.scheduler().counts().num_preemptions, 10) << "the arena is too large: the test is too easy";
    }
    EXPECT_EQ(a.scheduler().counts().num_preemptions, b.scheduler().counts().num_preemptions);
  }
}

TEST(Fairness, IdleSharesAreUsedAtOnceAndEarnNoCredit) {
  FairPolicy policy({});
  FairSimulation simulation(&policy,
                            {{.name = "steady", .rate = kManyPerSecond}, {.name = "moody", .rate = kManyPerSecond}});
  simulation.Run(kWarmUp);
  simulation.ResetReports();
  simulation.Run(kTime);
  const double both = simulation.TotalCost();

  simulation.tenants[1].rate = 0;
  simulation.tenants[1].max_waiting = 0;
  simulation.Run(kWarmUp);  // until its last request has ended
  simulation.ResetReports();
  simulation.Run(kTime);
  EXPECT_EQ(simulation.Share("steady"), 1);
  EXPECT_GT(simulation.Cost("steady"), 0.99 * both);

  simulation.tenants[1] = {.name = "moody", .rate = kManyPerSecond};
  simulation.Run(absl::Seconds(2));  // its first requests wait for those that run
  simulation.ResetReports();
  simulation.Run(absl::Seconds(10));
  EXPECT_NEAR(simulation.Share("moody"), 0.5, 0.05) << "it got nothing for two minutes, because it asked for nothing";
}

// The requests of the heavy tenant want all the prefill there is, for minutes.
TEST(Fairness, AShortPromptDoesNotWaitForAnothersLongOnes) {
  FairPolicy policy({});
  FcfsPolicy fcfs;
  absl::Duration waits[2];
  for (const bool fair : {false, true}) {
    FairSimulation simulation(fair ? static_cast<SchedulingPolicy*>(&policy) : &fcfs,
                              {{.name = "heavy", .rate = 0}, {.name = "light", .rate = 0}}, /*arena_blocks=*/10000);
    for (int i = 0; i < 10; ++i) simulation.Add(simulation.tenants[0], 1900, 2);
    for (int i = 0; i < 20; ++i) simulation.Step();
    simulation.Add(simulation.tenants[1], 20, 2);
    while (simulation.reports["light"].ended == 0) simulation.Step();
    waits[fair ? 1 : 0] = simulation.reports["light"].longest_wait;
    // The first prompt is computed as fast as it can be, and all are in the end.
    while (!simulation.empty()) simulation.Step();
    EXPECT_EQ(simulation.reports["heavy"].ended, 10);
  }
  EXPECT_GT(waits[0], absl::Seconds(1)) << "the test is too easy";
  EXPECT_LE(waits[1], absl::Milliseconds(20)) << "one step";
}

TEST(Fairness, PrioritiesAndAgeingHoldInsideATenant) {
  FairPolicy policy({.ageing = absl::Seconds(1)});
  // They fill the server, each alone.
  std::vector<SimulatedTenant> tenants = {{.name = "t", .rate = 0}, {.name = "t", .rate = 0, .priority = 20}};
  FairSimulation simulation(&policy, tenants);
  for (int i = 0; i < 16; ++i) simulation.Add(tenants[0], 10, 100);
  simulation.Step();
  simulation.Add(tenants[0], 10, 100);  // the 17th waits
  const absl::Time arrival = simulation.now;
  while (std::find(simulation.order.begin(), simulation.order.end(), 17) == simulation.order.end()) {
    ASSERT_LT(simulation.now, arrival + absl::Seconds(25)) << "it ages";
    // Later ones of a higher priority, more than end at once.
    while (simulation.scheduler().counts().num_waiting < 30) simulation.Add(tenants[1], 10, 100);
    simulation.Step();
  }
  EXPECT_GT(simulation.now, arrival + absl::Seconds(20)) << "those of priority 20 go first";
}

// The light tenant holds little. Its requests only go for its own older ones, where those of the heavy tenant are older
// still.
TEST(Fairness, PreemptionSparesATenantWithinItsShare) {
  FairPolicy policy({});
  FairSimulation simulation(&policy,
                            {{.name = "heavy", .rate = kManyPerSecond, .longest_prompt = 20, .longest_output = 300},
                             {.name = "light", .rate = 4, .longest_prompt = 8, .longest_output = 20}},
                            /*arena_blocks=*/300);
  simulation.Run(kTime);
  EXPECT_GT(simulation.reports["heavy"].preemptions, 300) << "the test is too easy";
  EXPECT_GT(simulation.reports["light"].ended, 300);
  EXPECT_LT(simulation.reports["light"].preemptions, 10);
}

}  // namespace
}  // namespace berth
