#include "scheduler/load/queue_outlook.h"

#include <gtest/gtest.h>

#include <vector>

namespace berth {
namespace {

// 10 ms for a step that only decodes and 1 ms for a prefilled token, in steps of up to 100 tokens.
constexpr WaitRates kRates = {.decode_step_seconds = 0.010, .prefill_token_seconds = 0.001};
constexpr StepLimits kStep = {.step_tokens = 100, .chunk_tokens = 100};
constexpr Backlog kEmpty = {.num_places = 8};

TEST(QueueOutlookTest, InOrderOfArrivalAllThatWaitsComesBefore) {
  QueueOutlook outlook(kStep);
  std::vector<TenantQueue> unread = {{.tenant = TenantId("b"), .num_sequences = 5, .num_tokens = 50}};
  outlook.Update(kEmpty, kRates, /*by_tenant=*/false, &unread);
  EXPECT_EQ(outlook.Wait(), absl::ZeroDuration());
  outlook.Add("a", /*num_tokens=*/100, /*num_sequences=*/1);
  const absl::Duration wait =
      PredictWait(kRates, kStep, {.prefill_tokens = 100, .num_sequences = 1, .num_places = 8}, 1);
  EXPECT_GT(wait, absl::Milliseconds(100));
  EXPECT_EQ(outlook.Wait(), wait);
  EXPECT_EQ(outlook.WaitOfNewTenant(), wait);
  EXPECT_EQ(outlook.Before("b", 0).backlog.prefill_tokens, 100);
}

TEST(QueueOutlookTest, WithFairSharesANewTenantComesBeforeWhatOthersHaveWaiting) {
  QueueOutlook outlook(kStep);
  std::vector<TenantQueue> none;
  outlook.Update(kEmpty, kRates, /*by_tenant=*/true, &none);
  for (int i = 0; i < 4; ++i) outlook.Add("a", /*num_tokens=*/100, /*num_sequences=*/1);
  EXPECT_EQ(outlook.Before("a", 0).backlog.prefill_tokens, 400);
  EXPECT_EQ(outlook.Before("a", /*priority=*/1).backlog.prefill_tokens, 0);
  EXPECT_EQ(outlook.Before("b", 0).backlog.prefill_tokens, 0);
  EXPECT_EQ(outlook.WaitOfNewTenant(), absl::ZeroDuration());
  EXPECT_GT(outlook.Wait(), absl::Milliseconds(400));
}

TEST(QueueOutlookTest, AnUpdateForgetsWhatWasAdded) {
  QueueOutlook outlook(kStep);
  std::vector<TenantQueue> tenants;
  outlook.Update(kEmpty, kRates, /*by_tenant=*/true, &tenants);
  outlook.Add("a", 100, 1);
  EXPECT_GT(outlook.Wait(), absl::ZeroDuration());
  outlook.Update(kEmpty, kRates, /*by_tenant=*/true, &tenants);
  EXPECT_EQ(outlook.Wait(), absl::ZeroDuration());
  EXPECT_EQ(outlook.Before("a", 0).backlog.prefill_tokens, 0);
}

}  // namespace
}  // namespace berth
