#include "server/admission/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/fake_clock.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using Ticket = std::shared_ptr<Admission::Ticket>;

class AdmissionTest : public ::testing::Test {
 protected:
  explicit AdmissionTest(int64_t max_idle_accounts = 10000)
      : admission_({.tenants = [this] { return tenants_; },
                    .max_idle_accounts = max_idle_accounts,
                    .now = [this] { return clock_.Now(); }}) {}
  void TearDown() override { EXPECT_EQ(admission_.totals().requests, 0); }

  void SetLimits(const std::string& json) {
    absl::StatusOr<Tenants> tenants = Tenants::Parse(json);
    ASSERT_TRUE(tenants.ok()) << tenants.status();
    tenants_ = std::make_shared<const Tenants>(*std::move(tenants));
  }
  // A ticket, or null after a refusal, which `refused_` tells.
  Ticket Arrive(const std::string& tenant = "a") {
    absl::StatusOr<Ticket> ticket = admission_.Arrive(tenant);
    if (ticket.ok()) return *std::move(ticket);
    Remember(ticket.status());
    return nullptr;
  }
  Ticket ArriveAndPay(const RequestCost& cost, const std::string& tenant = "a") {
    Ticket ticket = Arrive(tenant);
    if (ticket == nullptr) return nullptr;
    const absl::Status s = ticket->Pay(cost);
    if (s.ok()) return ticket;
    Remember(s);
    return nullptr;
  }
  void Remember(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    ASSERT_TRUE(RefusalOf(status).has_value());
    refused_ = *RefusalOf(status);
    message_ = std::string(status.message());
  }

  FakeClock clock_;
  std::shared_ptr<const Tenants> tenants_ = std::make_shared<const Tenants>();
  Admission admission_;
  Refusal refused_;
  std::string message_;
};

TEST_F(AdmissionTest, WithoutLimitsTakesEverythingAndKeepsNothing) {
  std::vector<Ticket> tickets;
  for (int i = 0; i < 1000; ++i) {
    tickets.push_back(ArriveAndPay({.sequences = 64, .prompt_tokens = 1 << 20, .output_tokens = 1 << 20}));
    ASSERT_NE(tickets.back(), nullptr);
  }
  EXPECT_EQ(admission_.totals().sequences, 64000);
  EXPECT_EQ(admission_.totals().queued_tokens, int64_t{1000} << 20);
  for (const Ticket& ticket : tickets) ticket->OnEnded(5);
  EXPECT_EQ(admission_.totals(), Admission::Totals());
}

TEST_F(AdmissionTest, ARequestRateLetsItsBurstThroughAndThenItsRate) {
  SetLimits(R"({"tenants": [{"name": "a", "requests_per_second": 2, "burst_seconds": 5}]})");
  const auto accepted_of = [this](int tries) {
    int accepted = 0;
    for (int i = 0; i < tries; ++i) {
      const Ticket ticket = Arrive();
      if (ticket == nullptr) continue;
      ++accepted;
      ticket->OnEnded(0);
    }
    return accepted;
  };
  EXPECT_EQ(accepted_of(100), 10);
  EXPECT_EQ(refused_, (Refusal{.reason = RefusalReason::kTenantRequestRate,
                               .retry_after = absl::Milliseconds(500),
                               .setting = "requests_per_second",
                               .limit = "2",
                               .value = "1",
                               .tenant = "a"}));
  EXPECT_EQ(message_, "tenant \"a\": requests_per_second of 2 is used up; retry in 500ms");
  // Ten hours at a tenth of a second: no drift, whatever the fractions add up to.
  int total = 0;
  for (int i = 0; i < 36000; ++i) {
    clock_.Advance(absl::Milliseconds(100));
    total += accepted_of(3);
  }
  EXPECT_EQ(total, 7200);
  clock_.Advance(absl::Hours(1000));
  EXPECT_EQ(accepted_of(100), 10) << "the bucket holds no more than its burst";
  EXPECT_NE(Arrive("b"), nullptr) << "another tenant has no limit";
}

TEST_F(AdmissionTest, ARetryAfterTheDelaySucceedsAndOneBeforeDoesNot) {
  for (const char* limits : {R"({"default": {"requests_per_second": 3, "burst_seconds": 1}})",
                             R"({"default": {"tokens_per_second": 7, "burst_seconds": 10}})"}) {
    SetLimits(limits);
    std::mt19937 random(1);
    int refusals = 0;
    for (int i = 0; i < 500; ++i) {
      clock_.Advance(absl::Milliseconds(random() % 100));
      const RequestCost cost = {.prompt_tokens = static_cast<int64_t>(random() % 90), .output_tokens = 20};
      Ticket ticket = ArriveAndPay(cost);
      if (ticket == nullptr) {
        ++refusals;
        ASSERT_GE(refused_.retry_after, absl::Milliseconds(1));
        clock_.Advance(refused_.retry_after - absl::Milliseconds(1));
        EXPECT_EQ(ArriveAndPay(cost), nullptr);
        clock_.Advance(absl::Milliseconds(1));
        ticket = ArriveAndPay(cost);
        ASSERT_NE(ticket, nullptr) << message_;
      }
      ticket->OnEnded(20);
    }
    EXPECT_GT(refusals, 100);
  }
}

TEST_F(AdmissionTest, ATokenRateCountsWhatWasUsedAndNoMore) {
  SetLimits(R"({"default": {"tokens_per_second": 100, "burst_seconds": 10}})");
  const RequestCost cost = {.prompt_tokens = 300, .output_tokens = 600};
  const Ticket first = ArriveAndPay(cost);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(ArriveAndPay(cost), nullptr) << "it might use 900 tokens too, and 100 are left";
  EXPECT_EQ(refused_.reason, RefusalReason::kTenantTokenRate);
  EXPECT_EQ(refused_.retry_after, absl::Seconds(8));
  first->OnEnded(/*output_tokens=*/100);  // 400 were used: 600 are left
  EXPECT_EQ(ArriveAndPay(cost), nullptr);
  EXPECT_EQ(refused_.retry_after, absl::Seconds(3));
  clock_.Advance(absl::Seconds(3));
  const Ticket second = ArriveAndPay(cost);
  ASSERT_NE(second, nullptr);
  second->OnEnded(600);
}

// A session of 600 tokens. 500 were generated before it was resumed.
TEST_F(AdmissionTest, ReplayedTokensCostNothing) {
  SetLimits(R"({"default": {"tokens_per_second": 1, "burst_seconds": 100}})");
  const RequestCost cost = {.output_tokens = 100, .replayed_tokens = 500};
  const auto left_after = [&](int64_t output_tokens) -> int64_t {
    ArriveAndPay(cost)->OnEnded(output_tokens);
    EXPECT_EQ(ArriveAndPay({.output_tokens = 100}), nullptr);
    const int64_t left = 100 - absl::ToInt64Seconds(refused_.retry_after);
    clock_.Advance(absl::Seconds(100));
    return left;
  };
  EXPECT_EQ(left_after(520), 80) << "it generated 20";
  EXPECT_EQ(left_after(599), 1);
  const Ticket cancelled = ArriveAndPay(cost);
  ASSERT_NE(cancelled, nullptr);
  cancelled->OnEnded(200);  // it was cancelled while the tokens were replayed
  EXPECT_NE(ArriveAndPay({.output_tokens = 100}), nullptr);
}

TEST_F(AdmissionTest, ARequestLargerThanTheBurstWaitsForAFullBucketAndLeavesADebt) {
  SetLimits(R"({"default": {"tokens_per_second": 100, "burst_seconds": 10}})");
  const Ticket large = ArriveAndPay({.prompt_tokens = 5000});
  ASSERT_NE(large, nullptr);
  large->OnEnded(0);
  EXPECT_EQ(ArriveAndPay({.prompt_tokens = 1}), nullptr);
  EXPECT_EQ(refused_.retry_after, absl::Milliseconds(40010));
  // Dropping the account would forgive the debt.
  EXPECT_EQ(admission_.totals().accounts, 1);
  clock_.Advance(absl::Milliseconds(40010));
  const Ticket small = ArriveAndPay({.prompt_tokens = 1});
  ASSERT_NE(small, nullptr);
  small->OnEnded(0);
}

TEST_F(AdmissionTest, CountsWhatTheTenantHolds) {
  SetLimits(
      R"({"default": {"running_sequences": 4, "queued_requests": 2, "queued_tokens": 100, "cache_bytes": 1000}})");
  const Ticket one = ArriveAndPay({.sequences = 2, .prompt_tokens = 60, .cache_bytes = 400});
  ASSERT_NE(one, nullptr);

  EXPECT_EQ(ArriveAndPay({.sequences = 3}), nullptr);
  EXPECT_EQ(refused_, (Refusal{.reason = RefusalReason::kTenantRunning,
                               .setting = "running_sequences",
                               .limit = "4",
                               .value = "5",
                               .tenant = "a"}));
  EXPECT_EQ(ArriveAndPay({.prompt_tokens = 41}), nullptr);
  EXPECT_EQ(refused_.reason, RefusalReason::kTenantQueuedTokens);
  EXPECT_EQ(refused_.value, "101");
  EXPECT_EQ(ArriveAndPay({.cache_bytes = 601}), nullptr);
  EXPECT_EQ(refused_.reason, RefusalReason::kTenantCache);

  const Ticket two = ArriveAndPay({.sequences = 1, .prompt_tokens = 40, .cache_bytes = 600});
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(Arrive(), nullptr) << "before its tokens are known";
  EXPECT_EQ(refused_.reason, RefusalReason::kTenantQueue);
  one->OnFirstToken();
  one->OnFirstToken();  // once is enough
  const Ticket three = ArriveAndPay({.prompt_tokens = 60});
  ASSERT_NE(three, nullptr);
  two->OnFirstToken();
  EXPECT_EQ(Arrive(), nullptr);
  EXPECT_EQ(refused_.reason, RefusalReason::kTenantRunning);
  EXPECT_NE(Arrive("b"), nullptr) << "another tenant has an account of its own";

  one->OnEnded(0);
  two->OnEnded(0);
  three->Withdraw();
  EXPECT_EQ(admission_.totals(), Admission::Totals());
}

TEST_F(AdmissionTest, ARequestThatIsTooLargeAloneIsNotToldToRetry) {
  SetLimits(R"({"default": {"running_sequences": 4, "queued_tokens": 100, "cache_bytes": 1000}})");
  for (const RequestCost& cost :
       {RequestCost{.sequences = 5}, RequestCost{.prompt_tokens = 101}, RequestCost{.cache_bytes = 1001}}) {
    EXPECT_EQ(ArriveAndPay(cost), nullptr);
    EXPECT_EQ(refused_.retry_after, absl::ZeroDuration());
    EXPECT_THAT(message_, HasSubstr("alone"));
  }
  EXPECT_EQ(admission_.totals(), Admission::Totals());
}

TEST_F(AdmissionTest, ARefusalElsewhereGivesTheRatesBack) {
  SetLimits(R"({"default": {"requests_per_second": 1, "burst_seconds": 1, "tokens_per_second": 50}})");
  for (int i = 0; i < 100; ++i) {
    const Ticket ticket = ArriveAndPay({.prompt_tokens = 20, .output_tokens = 30});
    ASSERT_NE(ticket, nullptr) << i;
    ticket->Withdraw();
    EXPECT_FALSE(ticket->Pay({}).ok()) << "it has ended";
  }
  for (int i = 0; i < 100; ++i) ASSERT_NE(Arrive(), nullptr) << "a ticket that is dropped is withdrawn";
  EXPECT_EQ(admission_.totals(), Admission::Totals());
}

TEST_F(AdmissionTest, NewLimitsHoldAtOnceAndForWhatIsUnderWay) {
  const Ticket before = ArriveAndPay({.sequences = 3});
  ASSERT_NE(before, nullptr);
  SetLimits(R"({"default": {"running_sequences": 3, "requests_per_second": 1, "burst_seconds": 1}})");
  EXPECT_EQ(Arrive(), nullptr);
  EXPECT_EQ(refused_.reason, RefusalReason::kTenantRunning);
  before->OnEnded(0);
  Arrive()->OnEnded(0);
  EXPECT_EQ(Arrive(), nullptr);
  SetLimits(R"({"default": {"requests_per_second": 100}})");
  EXPECT_EQ(Arrive(), nullptr) << "what is used up stays so";
  clock_.Advance(absl::Milliseconds(10));
  Arrive()->OnEnded(0);
  SetLimits("{}");
  Arrive()->OnEnded(0);
  EXPECT_EQ(admission_.totals(), Admission::Totals());
}

TEST_F(AdmissionTest, AClockThatIsSetBackNeitherFillsNorEmptiesABucket) {
  SetLimits(R"({"default": {"requests_per_second": 1, "burst_seconds": 2}})");
  Arrive()->OnEnded(0);
  clock_.Advance(-absl::Hours(1));
  Arrive()->OnEnded(0);
  EXPECT_EQ(Arrive(), nullptr);
  clock_.Advance(absl::Seconds(1));
  Arrive()->OnEnded(0);
  EXPECT_EQ(Arrive(), nullptr);
}

class FewIdleAccountsTest : public AdmissionTest {
 protected:
  FewIdleAccountsTest() : AdmissionTest(/*max_idle_accounts=*/50) {}
};

TEST_F(FewIdleAccountsTest, InventedTenantsDoNotFillTheMemory) {
  SetLimits(R"({"default": {"requests_per_second": 1, "burst_seconds": 100}})");
  const Ticket busy = Arrive("busy");
  for (int i = 0; i < 100000; ++i) {
    Arrive(absl::StrCat("tenant ", i))->OnEnded(0);
    if (i % 1000 != 0) continue;
    ASSERT_LE(admission_.totals().accounts, 51) << i;
  }
  EXPECT_EQ(admission_.totals().accounts, 51);
  EXPECT_EQ(admission_.totals().requests, 1) << "an account in use stays";
  clock_.Advance(absl::Seconds(1));  // every bucket is full again
  busy->OnEnded(0);
  EXPECT_EQ(admission_.totals(), Admission::Totals());
}

TEST_F(AdmissionTest, FullAccountsAreDroppedAtOnce) {
  SetLimits(R"({"default": {"running_sequences": 4, "queued_tokens": 1000}})");
  for (int i = 0; i < 1000; ++i) ArriveAndPay({}, absl::StrCat(i))->OnEnded(0);
  EXPECT_EQ(admission_.totals(), Admission::Totals());
}

TEST_F(AdmissionTest, ConcurrentRequestsNeverPassALimitAndLeaveNothing) {
  SetLimits(R"({"default": {"running_sequences": 6, "queued_requests": 4, "queued_tokens": 90, "cache_bytes": 500,
                            "requests_per_second": 1e8, "tokens_per_second": 1e8}})");
  const auto work = [this](int seed) {
    std::mt19937 random(seed);
    std::vector<Ticket> held;
    for (int i = 0; i < 3000; ++i) {
      absl::StatusOr<Ticket> ticket = admission_.Arrive(absl::StrCat("t", random() % 2));
      if (ticket.ok() && (*ticket)
                             ->Pay({.sequences = 1 + static_cast<int64_t>(random() % 2),
                                    .prompt_tokens = static_cast<int64_t>(random() % 40),
                                    .output_tokens = 10,
                                    .cache_bytes = static_cast<int64_t>(random() % 200)})
                             .ok()) {
        held.push_back(*std::move(ticket));
      }
      const Admission::Totals totals = admission_.totals();
      EXPECT_LE(totals.sequences, 12);  // of two tenants
      EXPECT_LE(totals.queued_requests, 8);
      EXPECT_LE(totals.queued_tokens, 180);
      EXPECT_LE(totals.cache_bytes, 1000);
      if (held.empty() || random() % 2 == 0) continue;
      const Ticket ended = std::move(held.back());
      held.pop_back();
      if (random() % 2 == 0) ended->OnFirstToken();
      if (random() % 3 != 0) ended->OnEnded(static_cast<int64_t>(random() % 10));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  clock_.Advance(absl::Hours(1));
  Arrive("t0")->Withdraw();  // drops what has become full
  EXPECT_EQ(admission_.totals(), Admission::Totals());
}

TEST_F(AdmissionTest, AClosedTenantIsRefusedUntilItIsReopened) {
  Ticket before = Arrive("a");
  admission_.Close("a");
  EXPECT_EQ(Arrive("a"), nullptr);
  EXPECT_EQ(refused_.reason, RefusalReason::kTenantErased);
  EXPECT_EQ(refused_.tenant, "a");
  EXPECT_GT(refused_.retry_after, absl::ZeroDuration());
  EXPECT_NE(Arrive("b"), nullptr);
  EXPECT_FALSE(admission_.WaitUntilGone("a", absl::ZeroDuration()));
  std::thread ends([ticket = std::move(before)] { ticket->OnEnded(0); });
  EXPECT_TRUE(admission_.WaitUntilGone("a", absl::Minutes(1)));
  ends.join();
  EXPECT_TRUE(admission_.WaitUntilGone("nobody", absl::ZeroDuration()));
  admission_.Reopen("a");
  EXPECT_NE(Arrive("a"), nullptr);
}

}  // namespace
}  // namespace berth
