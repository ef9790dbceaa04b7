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

  // Bytes that no unit uses.
  int64_t FreeBytes() {
    Occupancy now;
    cache().GetOccupancy(/*chunk_tokens=*/1, /*limit=*/100, &now);
    return now.FreeBytes();
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

TEST_F(PrefixTest, AHitIsAMultipleOfTheChunkWhereABlockIsMissing) {
  Make({StaticLayer()}, /*size=*/8);
  Serve(Tokens(16, 200));
  Serve(Tokens(40, 300));
  Serve(Tokens(16, 400));  // 2 blocks of the first go
  const auto found = [&](int64_t multiple) {
    return cache().NewLease().Adopt("", Tokens(17, 200), multiple).num_tokens;
  };
  ASSERT_EQ(found(1), 8);
  EXPECT_EQ(found(3), 6);
  EXPECT_EQ(found(5), 5);
  EXPECT_EQ(found(7), 7);
  EXPECT_EQ(found(16), 0);
}

TEST_F(PrefixTest, WhatAWindowLeftBehindIsStillFound) {
  Make({SlidingLayer(6), StaticLayer()});
  EXPECT_EQ(Serve(Tokens(40)), 0);
  EXPECT_EQ(Serve(Tokens(20) + Tokens(9, 500)), 20);
}

// Like Serve, in one step that has marks.
class MarksTest : public PrefixTest {
 protected:
  int64_t ServeMarked(const std::vector<int32_t>& tokens, const std::vector<int64_t>& marks) {
    SequenceLease lease = cache().NewLease();
    const PrefixHit hit = lease.Adopt("", tokens + Tokens(1, 10000));
    EXPECT_TRUE(lease.Grow(static_cast<int64_t>(tokens.size()) - hit.num_tokens).ok());
    for (const int64_t mark : marks) EXPECT_TRUE(lease.MarkStates(mark));
    lease.Publish(tokens, /*checkpoint=*/true);
    EXPECT_TRUE(lease.marks().empty());
    return hit.num_tokens;
  }
  int64_t Find(const std::vector<int32_t>& tokens) { return cache().NewLease().Adopt("", tokens).num_tokens; }
};

TEST_F(MarksTest, StatesServeWhereAStepHadMarks) {
  for (const auto& layers : {std::vector<LayerCacheSpec>{RecurrentLayer()}, HybridLayers()}) {
    Make(layers);
    EXPECT_EQ(ServeMarked(Tokens(23), {3, 8, 13}), 0);
    EXPECT_EQ(Find(Tokens(3) + Tokens(3, 90)), 3);
    EXPECT_EQ(Find(Tokens(7) + Tokens(3, 90)), 3);
    EXPECT_EQ(Find(Tokens(9) + Tokens(3, 90)), 8);
    EXPECT_EQ(Find(Tokens(14) + Tokens(3, 90)), 13);
    EXPECT_EQ(Find(Tokens(40)), 23);
    ASSERT_NO_FATAL_FAILURE(TearDown());
  }
}

TEST_F(MarksTest, MarksReturnTheirUnitsWhenNothingIsShared) {
  Make(HybridLayers());
  {
    SequenceLease lease = cache().NewLease();
    ASSERT_TRUE(lease.Grow(10).ok());
    ASSERT_TRUE(lease.MarkStates(4));
    ASSERT_TRUE(cache().CheckIntegrity().ok()) << cache().CheckIntegrity();
    lease.Publish(Tokens(10), /*checkpoint=*/true);  // it does not share
    EXPECT_TRUE(lease.marks().empty());
    ASSERT_TRUE(lease.MarkStates(5));
  }
  Occupancy now;
  cache().GetOccupancy(1, 100, &now);
  EXPECT_EQ(now.unassigned_free_bytes + now.unassigned_overhead_bytes, now.arena_bytes);
}

TEST_F(MarksTest, StatesOverTheirShareAreThinnedTheClosestFirst) {
  tiny_.emplace(std::vector<LayerCacheSpec>{RecurrentLayer(), StaticLayer()}, /*size=*/64, /*piece_bytes=*/256,
                /*checkpoints=*/false, /*state_share=*/8.5 * 64 / (64 * 256));
  // States at 20, 40, 42, 60 and 80, and then at 100, 120, 140: as many as may be kept.
  EXPECT_EQ(ServeMarked(Tokens(80), {20, 40, 42, 60}), 0);
  EXPECT_EQ(ServeMarked(Tokens(140), {100, 120}), 80);
  EXPECT_EQ(Find(Tokens(43) + Tokens(3, 900)), 42);
  EXPECT_EQ(Find(Tokens(21) + Tokens(3, 900)), 20);
  // One more: that at 42 goes, although it was used since, as it is the closest to another.
  EXPECT_EQ(ServeMarked(Tokens(160), {}), 140);
  EXPECT_EQ(Find(Tokens(43) + Tokens(3, 900)), 40);
  EXPECT_EQ(Find(Tokens(41) + Tokens(3, 900)), 40);
  EXPECT_EQ(Find(Tokens(200)), 160);
  // Old ones go, and what is left is spread out.
  for (int i = 0; i < 20; ++i) Serve(Tokens(10, 1000 + 100 * i));
  EXPECT_TRUE(cache().CheckIntegrity().ok()) << cache().CheckIntegrity();
}

TEST_F(MarksTest, WithoutAShareNoStateIsKept) {
  tiny_.emplace(HybridLayers(), 64, 256, /*checkpoints=*/false, /*state_share=*/0.0);
  EXPECT_EQ(Serve(Tokens(20)), 0);
  EXPECT_EQ(Serve(Tokens(20)), 0);
  SequenceLease lease = cache().NewLease();
  ASSERT_TRUE(lease.Grow(10).ok());
  EXPECT_FALSE(lease.MarkStates(4));
}

// As with an int4 cache, whose newest tokens have a window of their own. The search looks at each block once.
TEST_F(PrefixTest, AWindowThatIsNowhereIsLookedForInOnePass) {
  constexpr int kTokens = 400000;
  Make({StaticLayer(), SlidingLayer(6)}, /*size=*/kTokens / kTinyBlockTokens);
  const std::vector<int32_t> tokens = Tokens(kTokens);
  {
    SequenceLease lease = cache().NewLease();
    lease.Share("");
    for (const int count : {kTokens - 40, 40}) ASSERT_TRUE(lease.Grow(count).ok());  // the second lets blocks expire
    lease.Publish(tokens, /*checkpoint=*/true);
  }
  EXPECT_EQ(Serve(Tokens(kTokens - 20) + Tokens(10)), kTokens - 20);
  SequenceLease other = cache().NewLease();
  const PrefixHit hit = other.Adopt("", Tokens(kTokens - 80) + Tokens(10));
  EXPECT_EQ(hit.matched_tokens, kTokens - 80);
  EXPECT_EQ(hit.num_tokens, 0);
}

TEST_F(PrefixTest, WithdrawTakesAllBack) {
  Make({StaticLayer()});
  Serve(Tokens(10));
  SequenceLease lease = cache().NewLease();
  EXPECT_EQ(lease.Adopt("", Tokens(11)).num_tokens, 10);
  lease.Withdraw(Tokens(11));
  lease = SequenceLease();
  EXPECT_EQ(Serve(Tokens(10)), 0);
}

// Before its first block is whole, a sequence has nothing in the index but its own beginning.
TEST_F(PrefixTest, WithdrawLeavesOtherBeginnings) {
  for (const auto& layers : {std::vector<LayerCacheSpec>{StaticLayer()}, HybridLayers()}) {
    Make(layers);
    Serve(Tokens(10));
    Serve(Tokens(9, 70));
    SequenceLease lease = cache().NewLease();
    EXPECT_EQ(lease.Adopt("", Tokens(10, 90)).num_tokens, 0);
    ASSERT_TRUE(lease.Grow(3).ok());
    lease.Publish(Tokens(3, 90), /*checkpoint=*/true);
    lease.Withdraw(Tokens(3, 90));
    lease = SequenceLease();
    EXPECT_EQ(Serve(Tokens(3, 90) + Tokens(5, 30)), 0);
    EXPECT_EQ(Serve(Tokens(10) + Tokens(5, 40)), 10);
    EXPECT_EQ(Serve(Tokens(9, 70) + Tokens(5, 50)), 9);
  }
}

TEST_F(PrefixTest, ForgetPrefixesTakesThoseOfASaltOrAll) {
  for (const auto& layers : {std::vector<LayerCacheSpec>{StaticLayer()}, HybridLayers(), {SlidingLayer(6)}}) {
    Make(layers);
    const int64_t empty = FreeBytes();
    Serve(Tokens(10), "a");
    const int64_t with_a = FreeBytes();
    Serve(Tokens(10) + Tokens(9, 70), "b");
    Serve(Tokens(10) + Tokens(9, 90), "b");
    const int64_t with_both = FreeBytes();
    EXPECT_EQ(cache().ForgetPrefixes("nobody"), 0);
    EXPECT_EQ(cache().ForgetPrefixes("b"), with_a - with_both);
    EXPECT_EQ(Serve(Tokens(19), "b"), 0);
    EXPECT_EQ(Serve(Tokens(10), "a"), 10);
    cache().ForgetPrefixes(std::nullopt);
    EXPECT_EQ(FreeBytes(), empty);
    EXPECT_EQ(Serve(Tokens(10), "a"), 0);
    ASSERT_NO_FATAL_FAILURE(TearDown());
  }
}

TEST_F(PrefixTest, ASequenceGoesOnWhenItsPrefixIsForgotten) {
  Make(HybridLayers());
  Serve(Tokens(10), "a");
  SequenceLease lease = cache().NewLease();
  EXPECT_EQ(lease.Adopt("a", Tokens(20)).num_tokens, 10);
  ASSERT_TRUE(lease.Grow(4).ok());
  const int64_t before = FreeBytes();
  const int64_t freed = cache().ForgetPrefixes("a");
  EXPECT_EQ(freed, FreeBytes() - before);
  ASSERT_TRUE(cache().CheckIntegrity().ok()) << cache().CheckIntegrity();
  lease.Publish(Tokens(14), /*checkpoint=*/true);
  ASSERT_TRUE(lease.Grow(20).ok());
  lease.Publish(Tokens(34), /*checkpoint=*/true);
  lease = SequenceLease();
  ASSERT_TRUE(cache().CheckIntegrity().ok()) << cache().CheckIntegrity();
  cache().ForgetPrefixes("a");
  EXPECT_EQ(Serve(Tokens(34), "a"), 0);
}

// A node whose own units are gone still leads to its children.
TEST_F(PrefixTest, NodesWithoutUnitsAreForgottenToo) {
  Make({StaticLayer()}, /*size=*/8);  // 16 blocks
  for (int32_t first = 0; first < 2000; first += 100) {
    Serve(Tokens(24) + Tokens(8, 1000 + first));
    SequenceLease filler = cache().NewLease();
    ASSERT_TRUE(filler.Grow(32 + first % 30).ok());  // evicts the beginnings of some paths
  }
  cache().ForgetPrefixes("");
  Occupancy now;
  cache().GetOccupancy(/*chunk_tokens=*/1, /*limit=*/100, &now);
  for (const PoolOccupancy& pool : now.pools) EXPECT_EQ(pool.cached_units, 0);
}

}  // namespace
}  // namespace berth
