#include "scheduler/policy/tenant_shares.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

struct Tenants {
  // Adds a waiting request of the tenant. Adding all before any is charged, each begins at 0.
  void Add(const std::string& tenant) {
    Request request;
    request.prompt = {1};
    request.cache_salt = tenant;
    sequences.push_back(std::make_unique<Sequence>(std::move(request)));
    sequences.back()->turn.account = accounts.Open(tenant);
    accounts.AddWaiting(*sequences.back(), now);
  }
  void Charge(const std::string& tenant, double cost) { accounts.Charge(accounts.Open(tenant), cost); }
  TenantShares Get() {
    board.Publish(now, /*at_once=*/true, &accounts);
    return board.Get();
  }

  absl::Time now = absl::UnixEpoch();
  TenantAccounts accounts{100};
  TenantSharesBoard board;
  std::vector<std::unique_ptr<Sequence>> sequences;
};

TEST(TenantShares, SaysWhatEachGotAndWhoIsBehind) {
  Tenants tenants;
  tenants.accounts.SetWeights({.by_tenant = {{"a", 2}}});
  for (const char* tenant : {"a", "b", ""}) tenants.Add(tenant);
  tenants.Charge("a", 60);
  tenants.Charge("b", 100);
  tenants.Charge("", 40);
  tenants.now += absl::Seconds(3);
  const TenantShares shares = tenants.Get();
  ASSERT_EQ(shares.largest.size(), 3u);
  EXPECT_EQ(shares.num_tenants, 3);
  EXPECT_EQ(shares.largest[0].tenant, "b");
  EXPECT_DOUBLE_EQ(shares.largest[0].share, 0.5);
  EXPECT_EQ(shares.largest[0].deficit, 0);
  EXPECT_EQ(shares.largest[0].wait, absl::Seconds(3));
  EXPECT_EQ(shares.largest[1].tenant, "a");
  EXPECT_DOUBLE_EQ(shares.largest[1].share, 0.3);
  EXPECT_DOUBLE_EQ(shares.largest[1].deficit, (100 - 30) * 2) << "half its cost counts, and twice the rest is its due";
  EXPECT_EQ(shares.largest[2].tenant, "");
  EXPECT_DOUBLE_EQ(shares.others.share, 0);
}

TEST(TenantShares, NamesTheLargestOnlyAndForgetsWithTime) {
  Tenants tenants;
  for (int i = 1; i <= 30; ++i) tenants.Add(absl::StrCat("t", i));
  tenants.Add("other");  // the metrics would mistake it
  for (int i = 1; i <= 30; ++i) tenants.Charge(absl::StrCat("t", i), i);
  tenants.Charge("other", 1000);
  TenantShares shares = tenants.Get();
  ASSERT_EQ(shares.largest.size(), TenantSharesBoard::kNumNamed);
  EXPECT_EQ(shares.num_tenants, 31);
  double sum = shares.others.share;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(shares.largest[i].tenant, absl::StrCat("t", 30 - i));
    sum += shares.largest[i].share;
  }
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_NEAR(shares.others.share, (1000 + 20 * 21 / 2) / (1000 + 30 * 31 / 2.0), 1e-9);
  EXPECT_EQ(shares.others.deficit, 1000 - 1) << "the largest of theirs";

  tenants.now += absl::Minutes(10);
  tenants.Get();
  tenants.Add("new");
  tenants.Charge("new", 30);
  shares = tenants.Get();
  EXPECT_EQ(shares.largest[0].tenant, "new");
  EXPECT_GT(shares.largest[0].share, 0.5) << "the others' work was long ago";
  EXPECT_EQ(shares.others.wait, absl::Minutes(10));
}

TEST(TenantShares, ArePublishedNowAndThen) {
  Tenants tenants;
  tenants.Add("a");
  tenants.board.Publish(tenants.now, /*at_once=*/false, &tenants.accounts);
  tenants.Add("b");
  tenants.now += absl::Milliseconds(900);
  tenants.board.Publish(tenants.now, /*at_once=*/false, &tenants.accounts);
  EXPECT_EQ(tenants.board.Get().num_tenants, 1);
  tenants.now += absl::Milliseconds(100);
  tenants.board.Publish(tenants.now, /*at_once=*/false, &tenants.accounts);
  EXPECT_EQ(tenants.board.Get().num_tenants, 2);
}

}  // namespace
}  // namespace berth
