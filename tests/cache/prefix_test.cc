// What a sequence finds of a prefix that others computed, kind by kind.
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

// Tokens first, first + 1, ...
std::vector<int32_t> Tokens(int count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<int32_t> operator+(std::vector<int32_t> head, const std::vector<int32_t>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

class PrefixTest : public ::testing::Test {
 protected:
  void Make(const std::vector<LayerCacheSpec>& layers, int64_t size = 64) { tiny_.emplace(layers, size); }
  void TearDown() override { EXPECT_TRUE(cache().CheckIntegrity().ok()) << cache().CheckIntegrity(); }
  Cache& cache() { return *tiny_->cache; }

  // A sequence that adopts what it can, computes the rest, and tells the index. Returns the tokens it shared.
  int64_t Serve(const std::vector<int32_t>& tokens, const std::string& salt = "") {
    SequenceLease lease = cache().NewLease();
    // One more, because the last is always computed.
    const PrefixHit hit = lease.Adopt(salt, tokens + Tokens(1, 10000));
    if (const int64_t rest = static_cast<int64_t>(tokens.size()) - hit.num_tokens; rest > 0) {
      EXPECT_TRUE(lease.Grow(rest).ok());
    }
    lease.Publish(tokens, /*checkpoint=*/true);
    return hit.num_tokens;
  }

  std::optional<TinyCache> tiny_;
};

TEST_F(PrefixTest, KeysAreSharedToTheToken) {
  Make({StaticLayer()});
  EXPECT_EQ(Serve(Tokens(10)), 0);
  EXPECT_EQ(Serve(Tokens(10)), 10);
  EXPECT_EQ(Serve(Tokens(7) + Tokens(5, 50)), 7);
  EXPECT_EQ(Serve(Tokens(9) + Tokens(5, 60)), 9) << "both ways out of a block are kept";
  EXPECT_EQ(Serve(Tokens(10, 1)), 0);
}

TEST_F(PrefixTest, APrefixThatEndsInsideABlockIsFoundAfterALongerOneCame) {
  for (const auto& layers : {std::vector<LayerCacheSpec>{StaticLayer()}, HybridLayers(), {RecurrentLayer()}}) {
    Make(layers);
    EXPECT_EQ(Serve(Tokens(10)), 0);
    EXPECT_EQ(Serve(Tokens(23)), 10);
    EXPECT_EQ(Serve(Tokens(10) + Tokens(6, 70)), 10);
    EXPECT_EQ(Serve(Tokens(10)), 10);
    EXPECT_EQ(Serve(Tokens(23)), 23);
    ASSERT_NO_FATAL_FAILURE(TearDown());
  }
}

TEST_F(PrefixTest, AStateServesOnlyWhereItWasKept) {
  Make({RecurrentLayer(), StaticLayer()});
  EXPECT_EQ(Serve(Tokens(10)), 0);
  SequenceLease lease = cache().NewLease();
  const PrefixHit hit = lease.Adopt("", Tokens(9) + Tokens(5, 50));
  EXPECT_EQ(hit.num_tokens, 0);
  EXPECT_EQ(hit.matched_tokens, 9) << "so that its own state at 9 is worth keeping";
}

TEST_F(PrefixTest, AStateDoesNotServeWithTheBlockOfAnother) {
  Make({RecurrentLayer(), StaticLayer()}, /*size=*/8);
  EXPECT_EQ(Serve({1, 2}), 0);
  {
    SequenceLease lease = cache().NewLease();
    EXPECT_EQ(lease.Adopt("", {1, 2, 3}).num_tokens, 2);
    lease.SnapshotStates(/*keep=*/1);  // given back last: the state is used more recently than the block
  }
  const auto num_cached = [&](CacheKind kind) {
    Occupancy now;
    cache().GetOccupancy(/*chunk_tokens=*/1, /*limit=*/100, &now);
    int64_t count = 0;
    for (const PoolOccupancy& pool : now.pools) count += pool.kind == kind ? pool.cached_units : 0;
    return count;
  };
  {
    SequenceLease filler = cache().NewLease();
    while (num_cached(CacheKind::kStatic) > 0) ASSERT_TRUE(filler.Grow(1).ok());
    ASSERT_EQ(num_cached(CacheKind::kRecurrent), 1);
  }
  EXPECT_EQ(Serve({1, 9, 9}), 0);
  SequenceLease lease = cache().NewLease();
  EXPECT_EQ(lease.Adopt("", {1, 2, 3}).num_tokens, 0);
}

TEST_F(PrefixTest, SaltsKeepTenantsApart) {
  Make(HybridLayers());
  EXPECT_EQ(Serve(Tokens(10), "a"), 0);
  EXPECT_EQ(Serve(Tokens(10), "b"), 0);
  EXPECT_EQ(Serve(Tokens(10), "a"), 10);
}

TEST_F(PrefixTest, TheLeastRecentlyUsedGoesFirst) {
  Make({StaticLayer()}, /*size=*/8);  // 16 blocks
  Serve(Tokens(16, 100));
  Serve(Tokens(16, 200));
  Serve(Tokens(16, 300));
  EXPECT_EQ(Serve(Tokens(16, 100)), 16);
  Serve(Tokens(24, 400));  // 6 blocks: the 4 that are free, and 2 more
  EXPECT_EQ(Serve(Tokens(16, 100)), 16);
  EXPECT_EQ(Serve(Tokens(16, 300)), 16);
  EXPECT_LT(Serve(Tokens(16, 200)), 16);
}

TEST_F(PrefixTest, WhatAWindowLeftBehindIsStillFound) {
  Make({SlidingLayer(6), StaticLayer()});
  EXPECT_EQ(Serve(Tokens(40)), 0);
  EXPECT_EQ(Serve(Tokens(20) + Tokens(9, 500)), 20);
}

TEST_F(PrefixTest, WithdrawTakesAllBack) {
  Make({StaticLayer()});
  Serve(Tokens(10));
  SequenceLease lease = cache().NewLease();
  EXPECT_EQ(lease.Adopt("", Tokens(11)).num_tokens, 10);
  lease.Withdraw();
  lease = SequenceLease();
  EXPECT_EQ(Serve(Tokens(10)), 0);
}

}  // namespace
}  // namespace berth
