#include "cache/lease.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "cache/cache.h"
#include "cache/storage.h"

namespace berth {
namespace {

constexpr int64_t kBlock = 4;
constexpr KvSpec kStatic = {.kv_heads = 2, .key_dim = 8, .value_dim = 8};
constexpr KvSpec kSliding = {.kv_heads = 2, .key_dim = 8, .value_dim = 8, .window = 6};
constexpr KvSpec kChunked = {.kv_heads = 2, .key_dim = 8, .value_dim = 8, .chunk = 6};

constexpr KvSpec kSinks = {.kv_heads = 2, .key_dim = 8, .value_dim = 8, .window = 6, .sink_tokens = 5};  // 2 blocks

class LeaseTest : public ::testing::Test {
 protected:
  void MakeCache(std::vector<LayerCacheSpec> layers, int64_t arena_kib = 128) {
    auto plan = BuildCachePlan(layers, kBlock);
    ASSERT_TRUE(plan.ok()) << plan.status();
    cache_.reset();
    storage_ = *CreateHostStorage(arena_kib * 1024 + 36);
    auto cache = Cache::Create(*plan, storage_.get(), {.poison_returned_units = true});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  void TearDown() override {
    if (cache_ != nullptr) {
      EXPECT_TRUE(cache_->CheckIntegrity().ok()) << cache_->CheckIntegrity();
    }
  }
  int64_t LiveUnits(int group) {
    Occupancy occupancy;
    cache_->GetOccupancy(1, 1, &occupancy);
    return occupancy.pools[group].live_units;
  }

  std::unique_ptr<ArenaStorage> storage_;
  std::unique_ptr<Cache> cache_;
};

LayerCacheSpec StateLayer() { return {.states = {{.name = "recurrent", .shape = {16}}}}; }

TEST_F(LeaseTest, GrowsByBlocks) {
  MakeCache({{.kv = kStatic}});
  SequenceLease lease = cache_->NewLease();
  ASSERT_TRUE(lease.Grow(1).ok());
  EXPECT_EQ(lease.blocks(0).offsets.size(), 1u);
  ASSERT_TRUE(lease.Grow(3).ok());
  EXPECT_EQ(lease.blocks(0).offsets.size(), 1u);
  ASSERT_TRUE(lease.Grow(5).ok());
  EXPECT_EQ(lease.blocks(0).offsets.size(), 3u);
  EXPECT_EQ(lease.num_tokens(), 9);
}

TEST_F(LeaseTest, AStateTakesOneUnitWhateverTheLength) {
  MakeCache({StateLayer()});
  SequenceLease lease = cache_->NewLease();
  EXPECT_EQ(LiveUnits(0), 0);
  ASSERT_TRUE(lease.Grow(1).ok());
  const int64_t unit = lease.state_unit(0);
  ASSERT_TRUE(lease.Grow(1000).ok());
  EXPECT_EQ(lease.state_unit(0), unit);
  EXPECT_EQ(LiveUnits(0), 1);
}

TEST_F(LeaseTest, AWindowGivesBackWhatNoQueryCanSee) {
  MakeCache({{.kv = kSliding}});
  SequenceLease lease = cache_->NewLease();
  for (int position = 0; position < 100; ++position) {
    ASSERT_TRUE(lease.Grow(1).ok());
    const int64_t oldest_visible = std::max<int64_t>(0, position - kSliding.window + 1);
    EXPECT_EQ(lease.blocks(0).expired_blocks, oldest_visible / kBlock) << position;
    EXPECT_EQ(lease.blocks(0).expired_blocks + static_cast<int64_t>(lease.blocks(0).offsets.size()),
              position / kBlock + 1);
  }
  EXPECT_LE(LiveUnits(0), (kSliding.window + kBlock - 1) / kBlock + 1);
}

TEST_F(LeaseTest, ChunksBeforeTheQuerysOwnAreGivenBack) {
  MakeCache({{.kv = kChunked}});
  SequenceLease lease = cache_->NewLease();
  for (int position = 0; position < 100; ++position) {
    ASSERT_TRUE(lease.Grow(1).ok());
    EXPECT_EQ(lease.blocks(0).expired_blocks, position / kChunked.chunk * kChunked.chunk / kBlock) << position;
  }
  EXPECT_LE(LiveUnits(0), (kChunked.chunk + kBlock - 1) / kBlock + 1);
}

TEST_F(LeaseTest, SinksStayWhileTheWindowPasses) {
  MakeCache({{.kv = kSinks}});
  SequenceLease lease = cache_->NewLease();
  int64_t sinks[] = {0, 0};
  for (int position = 0; position < 100; ++position) {
    ASSERT_TRUE(lease.Grow(1).ok());
    const BlockTable table = lease.blocks(0);
    if (position % kBlock == 0 && position / kBlock < 2) sinks[position / kBlock] = table.At(position / kBlock);
    EXPECT_EQ(table.expired_blocks, std::max<int64_t>(0, (position - kSinks.window + 1) / kBlock - 2)) << position;
    EXPECT_EQ(table.expired_blocks + static_cast<int64_t>(table.offsets.size()), position / kBlock + 1);
    EXPECT_EQ(table.At(0), sinks[0]);
    if (position >= kBlock) {
      EXPECT_EQ(table.At(1), sinks[1]);
    }
  }
  EXPECT_LE(LiveUnits(0), 2 + (kSinks.window + kBlock - 1) / kBlock + 1);
  EXPECT_EQ(LiveUnits(0), static_cast<int64_t>(lease.blocks(0).offsets.size()));
}

TEST_F(LeaseTest, AStreamWithSinksIsBoundedByItsWindowNotByItsLength) {
  MakeCache({{.kv = kSinks}}, /*arena_kib=*/8);
  const int64_t limit = int64_t{1} << 30;
  EXPECT_EQ(cache_->MaxSequenceTokens(kBlock, limit), limit);
  SequenceLease lease = cache_->NewLease();
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(lease.Grow(kBlock).ok()) << i;
}

TEST_F(LeaseTest, ACropKeepsTheSinksWithTheWindow) {
  MakeCache({{.kv = kSinks}});
  SequenceLease lease = cache_->NewLease();
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(lease.Grow(1).ok());
  const int64_t first = lease.blocks(0).At(0);
  EXPECT_EQ(lease.Crop(29), 29);
  EXPECT_EQ(lease.blocks(0).At(0), first);
  EXPECT_EQ(lease.blocks(0).expired_blocks, 4);
  // A query at 28 sees 23 too, whose block is gone.
  EXPECT_EQ(lease.Crop(28), 0);
  EXPECT_EQ(LiveUnits(0), 0);
  ASSERT_TRUE(lease.Grow(5).ok());
  EXPECT_EQ(lease.blocks(0).expired_blocks, 0);
  EXPECT_EQ(lease.blocks(0).offsets.size(), 2u);
}

TEST_F(LeaseTest, ASnapshotHoldsTheSinksAndTheWindow) {
  MakeCache({{.kv = kSinks}});
  SequenceLease lease = cache_->NewLease();
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(lease.Grow(1).ok());
  for (int64_t b : {0, 1, 6, 7}) storage_->base()[lease.blocks(0).At(b)] = static_cast<std::byte>(b + 1);
  const CacheSnapshot snapshot = lease.Save();
  EXPECT_EQ(snapshot.groups[0].expired_blocks, 4);
  EXPECT_EQ(snapshot.groups[0].num_units, 4) << "two of the sinks, and 25 to 29";
  lease.Reset();
  auto restored = cache_->Restore(snapshot);
  ASSERT_TRUE(restored.ok()) << restored.status();
  for (int64_t b : {0, 1, 6, 7}) {
    EXPECT_EQ(storage_->base()[restored->blocks(0).At(b)], static_cast<std::byte>(b + 1)) << b;
  }
}

TEST_F(LeaseTest, APrefixIsSharedOnlyWithItsSinks) {
  MakeCache({{.kv = kSinks}});
  std::vector<int32_t> tokens(41);
  for (int i = 0; i < 41; ++i) tokens[i] = i;
  SequenceLease lease = cache_->NewLease();
  lease.Share("");
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(lease.Grow(kBlock).ok());
    lease.Publish(tokens, /*checkpoint=*/false);
  }
  SequenceLease other = cache_->NewLease();
  EXPECT_EQ(other.Adopt("", tokens).num_tokens, 40);
  EXPECT_EQ(other.blocks(0).expired_blocks, 6);
  for (int64_t b : {0, 1, 8, 9}) EXPECT_EQ(other.blocks(0).At(b), lease.blocks(0).At(b)) << b;
  ASSERT_TRUE(other.Grow(1).ok());
  EXPECT_EQ(other.blocks(0).expired_blocks, 6);
}

TEST_F(LeaseTest, FailedGrowthChangesNothing) {
  MakeCache({{.kv = kStatic}, StateLayer()});
  SequenceLease lease = cache_->NewLease();
  ASSERT_TRUE(lease.Grow(kBlock).ok());
  const absl::Status status = lease.Grow(int64_t{1} << 40);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(lease.num_tokens(), kBlock);
  EXPECT_EQ(LiveUnits(0), 1);
}

TEST_F(LeaseTest, CropOfStaticKeepsTheRest) {
  MakeCache({{.kv = kStatic}});
  SequenceLease lease = cache_->NewLease();
  ASSERT_TRUE(lease.Grow(20).ok());
  EXPECT_EQ(lease.Crop(20), 20);
  EXPECT_EQ(lease.Crop(9), 9);
  EXPECT_EQ(lease.blocks(0).offsets.size(), 3u);
  EXPECT_EQ(lease.num_tokens(), 9);
}

TEST_F(LeaseTest, CropOfAStateReplaysFromTheStart) {
  MakeCache({{.kv = kStatic}, StateLayer()});
  SequenceLease lease = cache_->NewLease();
  ASSERT_TRUE(lease.Grow(20).ok());
  EXPECT_EQ(lease.Crop(19), 0);
  EXPECT_EQ(lease.num_tokens(), 0);
  EXPECT_EQ(LiveUnits(0), 0);
  EXPECT_EQ(LiveUnits(1), 0);
}

TEST_F(LeaseTest, CropOfAWindowKeepsWhatIsStillHeldWhole) {
  MakeCache({{.kv = kSliding}});
  SequenceLease lease = cache_->NewLease();
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(lease.Grow(1).ok());
  // The last query was at 29 and saw 24..29: blocks 6 and 7 are held. A query at 29 needs the same.
  EXPECT_EQ(lease.Crop(29), 29);
  // A query at 28 sees 23 too, whose block is gone.
  EXPECT_EQ(lease.Crop(28), 0);
  EXPECT_EQ(lease.blocks(0).expired_blocks, 0);
  ASSERT_TRUE(lease.Grow(5).ok());
  EXPECT_EQ(lease.blocks(0).offsets.size(), 2u);
}

TEST_F(LeaseTest, CrossBlocksComeWithTheFirstGrowthAndStay) {
  MakeCache({{.kv = kStatic, .cross = kStatic}});
  SequenceLease lease = cache_->NewLease(/*num_cross_tokens=*/2 * kBlock + 1);
  EXPECT_EQ(LiveUnits(1), 0);
  ASSERT_TRUE(lease.Grow(1).ok());
  EXPECT_EQ(lease.num_cross_tokens(), 2 * kBlock + 1);
  ASSERT_EQ(lease.blocks(1).offsets.size(), 3u);
  const std::vector<int64_t> blocks(lease.blocks(1).offsets.begin(), lease.blocks(1).offsets.end());
  ASSERT_TRUE(lease.Grow(30).ok());
  EXPECT_EQ(lease.Crop(17), 17);
  EXPECT_EQ(lease.Crop(0), 0);
  EXPECT_EQ(lease.blocks(1).offsets, absl::MakeConstSpan(blocks));
  EXPECT_TRUE(cache_->CheckIntegrity().ok()) << cache_->CheckIntegrity();
  ASSERT_TRUE(lease.Grow(5).ok());
  EXPECT_EQ(lease.blocks(1).offsets, absl::MakeConstSpan(blocks));
  lease.Reset();
  EXPECT_EQ(LiveUnits(0) + LiveUnits(1), 0);
  ASSERT_TRUE(lease.Grow(1).ok());
  EXPECT_EQ(LiveUnits(1), 3);
}

TEST_F(LeaseTest, ALostStateDoesNotTakeTheCrossBlocksAlong) {
  MakeCache({{.kv = kStatic, .cross = kStatic}, StateLayer()});
  SequenceLease lease = cache_->NewLease(/*num_cross_tokens=*/1);
  ASSERT_TRUE(lease.Grow(9).ok());
  EXPECT_EQ(lease.Crop(8), 0);
  EXPECT_EQ(LiveUnits(1), 1);
}

TEST_F(LeaseTest, ACrossSpanThatDoesNotFitLeavesTheLeaseEmpty) {
  MakeCache({{.kv = kStatic, .cross = kStatic}});
  SequenceLease lease = cache_->NewLease(/*num_cross_tokens=*/1 << 20);
  EXPECT_FALSE(cache_->CanFit(1, 1, 1 << 20));
  EXPECT_EQ(lease.Grow(1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(LiveUnits(0) + LiveUnits(1), 0);
}

TEST_F(LeaseTest, TheLongestSequenceHasAnEncoderInputAsLong) {
  MakeCache({{.kv = kStatic, .cross = kStatic}});
  const int64_t longest = cache_->MaxSequenceTokens(kBlock, 1 << 20);
  EXPECT_LT(longest, cache_->MaxSequenceTokens(kBlock, 1 << 20, /*cross_limit=*/kBlock));
  {
    SequenceLease lease = cache_->NewLease(longest);
    EXPECT_TRUE(lease.Grow(longest).ok());
    Occupancy occupancy;
    cache_->GetOccupancy(1, 1, &occupancy);
    EXPECT_EQ(occupancy.pools[1].kind, CacheKind::kCross);
    EXPECT_EQ(occupancy.pools[1].live_tokens, longest);
  }
  SequenceLease longer = cache_->NewLease(longest + kBlock);
  EXPECT_FALSE(longer.Grow(longest + kBlock).ok());
}

TEST_F(LeaseTest, DestructionReturnsEverythingPoisoned) {
  MakeCache({{.kv = kStatic}, StateLayer()});
  int64_t unit = 0;
  {
    SequenceLease lease = cache_->NewLease();
    ASSERT_TRUE(lease.Grow(10).ok());
    unit = lease.state_unit(1);
    std::memset(storage_->base() + unit, 0, 64);
    SequenceLease moved = std::move(lease);
    EXPECT_EQ(moved.num_tokens(), 10);
    EXPECT_TRUE(cache_->CheckIntegrity().ok()) << cache_->CheckIntegrity();
  }
  EXPECT_EQ(LiveUnits(0) + LiveUnits(1), 0);
  float value = 0;
  std::memcpy(&value, storage_->base() + unit, sizeof(value));
  EXPECT_TRUE(std::isnan(value));
}

TEST_F(LeaseTest, APoolTakesEveryByteThatAnotherGaveBack) {
  MakeCache({{.kv = kStatic}, StateLayer()});
  const int64_t longest = cache_->MaxSequenceTokens(kBlock, 1 << 20);
  std::vector<SequenceLease> many;
  while (cache_->CanFit(1, 1)) {
    many.push_back(cache_->NewLease());
    ASSERT_TRUE(many.back().Grow(1).ok());
  }
  many.clear();
  SequenceLease lease = cache_->NewLease();
  EXPECT_TRUE(lease.Grow(longest).ok());
  EXPECT_FALSE(lease.Grow(kBlock).ok());
}

TEST_F(LeaseTest, RefusesAnArenaThatCannotHoldAUnitPerGroup) {
  const auto plan = BuildCachePlan({{.kv = kStatic}, StateLayer()}, kBlock);
  storage_ = *CreateHostStorage(plan->groups[0].unit_bytes);
  const auto cache = Cache::Create(*plan, storage_.get(), {});
  EXPECT_EQ(cache.status().code(), absl::StatusCode::kFailedPrecondition);
}

using LeaseDeathTest = LeaseTest;

TEST_F(LeaseDeathTest, ACacheMayNotDieBeforeItsLeases) {
  MakeCache({StateLayer()});
  EXPECT_DEATH(
      {
        SequenceLease lease = cache_->NewLease();
        cache_.reset();
      },
      "1 leases outlive their cache");
}

// A snapshot comes in and goes out in pieces of any size, cut anywhere, and serves its first tokens where it can.
TEST_F(LeaseTest, PiecesOfASnapshotAddUp) {
  for (const int64_t piece : {1, 7, 64, 100, 1 << 20}) {
    MakeCache({{.kv = kStatic}, {.kv = kSliding}, {.states = {{.name = "s", .shape = {4}}}}}, /*arena_kib=*/16);
    std::vector<int32_t> tokens(18);
    std::iota(tokens.begin(), tokens.end(), 5);
    SequenceLease lease = cache_->NewLease();
    lease.Adopt("me", tokens);
    ASSERT_TRUE(lease.Grow(18).ok());
    for (int64_t at = 0; at < storage_->size_bytes(); at += 4) {
      const float value = static_cast<float>(at + piece);
      storage_->Write(at, 4, reinterpret_cast<const std::byte*>(&value));
    }
    lease.Publish(tokens, /*checkpoint=*/true);
    const CacheSnapshot whole = lease.Save();
    lease = SequenceLease();
    CacheSnapshot read = SnapshotLayout(cache_->plan(), 18, 0);
    read.bytes = std::make_unique<std::byte[]>(static_cast<size_t>(read.size_bytes));
    EXPECT_FALSE(cache_->ReadPrefix("you", tokens, 0, read.size_bytes, &read));
    EXPECT_FALSE(cache_->ReadPrefix("me", absl::MakeConstSpan(tokens).first(17), 0, 1, &read)) << "no state is there";
    for (int64_t at = 0; at < read.size_bytes; at += piece) {
      ASSERT_TRUE(cache_->ReadPrefix("me", tokens, at, std::min(at + piece, read.size_bytes), &read));
    }
    ASSERT_EQ(std::memcmp(read.bytes.get(), whole.bytes.get(), static_cast<size_t>(read.size_bytes)), 0);
    cache_->EvictAll();
    EXPECT_FALSE(cache_->ReadPrefix("me", tokens, 0, read.size_bytes, &read));
    absl::StatusOr<SequenceLease> back = cache_->Reserve(read);
    ASSERT_TRUE(back.ok());
    for (int64_t at = 0; at < read.size_bytes; at += piece) back->Load(read, at, std::min(at + piece, read.size_bytes));
    EXPECT_EQ(std::memcmp(back->Save().bytes.get(), whole.bytes.get(), static_cast<size_t>(read.size_bytes)), 0);
  }
}

TEST_F(LeaseTest, ASnapshotWithoutStatesServesWhatItsWindowsStillSee) {
  MakeCache({{.kv = kStatic}, {.kv = kSliding}}, /*arena_kib=*/16);
  const CachePlan& plan = cache_->plan();
  EXPECT_TRUE(SnapshotServes(plan, 20, 20));
  EXPECT_FALSE(SnapshotServes(plan, 20, 21));
  EXPECT_FALSE(SnapshotServes(plan, 20, 0));
  EXPECT_TRUE(SnapshotServes(plan, 20, 18)) << "a query at 18 sees 13 and later, in the same block as 15";
  EXPECT_FALSE(SnapshotServes(plan, 20, 16)) << "one at 16 sees 11";
  SequenceLease lease = cache_->NewLease();
  ASSERT_TRUE(lease.Grow(20).ok());
  const CacheSnapshot snapshot = lease.Save();
  absl::StatusOr<SequenceLease> shorter = cache_->Reserve(SnapshotLayout(plan, 18, 0));
  ASSERT_TRUE(shorter.ok());
  EXPECT_EQ(shorter->blocks(0).offsets.size(), 5u);
  EXPECT_EQ(shorter->blocks(1).expired_blocks, 3);
  shorter->Load(snapshot, 0, shorter->snapshot_bytes());
  EXPECT_EQ(std::memcmp(shorter->Save().bytes.get(), snapshot.bytes.get(), static_cast<size_t>(snapshot.size_bytes)),
            0);
  const auto with_states = BuildCachePlan({{.kv = kStatic}, StateLayer()}, kBlock);
  ASSERT_TRUE(with_states.ok());
  EXPECT_TRUE(SnapshotServes(*with_states, 20, 20));
  EXPECT_FALSE(SnapshotServes(*with_states, 20, 19));
}

TEST_F(LeaseTest, RestoreRefusesWhatDoesNotFit) {
  MakeCache({{.kv = kStatic}, {.kv = kSliding}, {.states = {{.name = "s", .shape = {4}}}}}, /*arena_kib=*/16);
  SequenceLease lease = cache_->NewLease();
  ASSERT_TRUE(lease.Grow(20).ok());
  CacheSnapshot snapshot = lease.Save();
  EXPECT_EQ(snapshot.groups[0].num_units, 5);
  EXPECT_EQ(snapshot.groups[1].expired_blocks, 3) << "a query at 20 sees 15 and later";
  EXPECT_EQ(snapshot.groups[1].num_units, 2);
  EXPECT_EQ(snapshot.groups[2].num_units, 1);
  SequenceLease hog = cache_->NewLease();
  while (hog.Grow(4).ok()) {
  }
  EXPECT_EQ(cache_->Restore(snapshot).status().code(), absl::StatusCode::kResourceExhausted);
  hog.Reset();
  EXPECT_TRUE(cache_->Restore(snapshot).ok());
  for (int what = 0; what < 5; ++what) {
    CacheSnapshot wrong = lease.Save();
    if (what == 0) wrong.num_tokens += 8;
    if (what == 1) wrong.groups.pop_back();
    if (what == 2) wrong.groups[0].unit_bytes += 64;
    if (what == 3) --wrong.size_bytes;
    if (what == 4) wrong.num_tokens = -1;
    EXPECT_EQ(cache_->Restore(wrong).status().code(), absl::StatusCode::kInvalidArgument) << what;
  }
  EXPECT_EQ(LiveUnits(0), 5);
}

// What a sequence lacks is enough for chunks of any size. For one chunk it is not a byte too much.
TEST_F(LeaseTest, ASequenceLacksWhatItsGrowthTakes) {
  constexpr int64_t kStep = 10;
  std::mt19937 random(1);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    MakeCache({{.kv = std::vector<KvSpec>{kStatic, kSliding, kChunked, kSinks}[i % 4]}});
    const auto grow = [&](SequenceLease* lease, int64_t end) {
      while (lease->num_tokens() < end) {
        ASSERT_TRUE(lease->Grow(std::min(end - lease->num_tokens(), between(1, kStep))).ok());
      }
    };
    SequenceLease lease = cache_->NewLease();
    grow(&lease, between(1, 40));
    const int64_t start = lease.num_tokens();
    const SequenceLease fork = between(0, 1) == 0 ? cache_->NewLease() : lease.Fork();  // keeps what others return
    const int64_t end = start + between(1, 40);
    SCOPED_TRACE(testing::Message() << "group " << i % 4 << ", from " << start << " to " << end);
    const int64_t missing = cache_->MissingBytes(lease, end, kStep);
    const int64_t before = cache_->available_bytes();
    if (fork.num_tokens() == 0 && end - start <= kStep && between(0, 1) == 0) {
      ASSERT_TRUE(lease.Grow(end - start).ok());
      EXPECT_EQ(missing, std::max<int64_t>(0, before - cache_->available_bytes()));
    }
    while (lease.num_tokens() < end) {
      grow(&lease, std::min(end, lease.num_tokens() + between(1, kStep)));
      EXPECT_LE(before - cache_->available_bytes(), missing) << lease.num_tokens();
    }
    EXPECT_EQ(cache_->MissingBytes(lease, end, kStep), 0);
  }
}

// Forks grow in any order, each from the shared tokens on.
TEST_F(LeaseTest, ForksLackWhatTheirGrowthTakes) {
  constexpr int64_t kStep = 10;
  std::mt19937 random(1);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    MakeCache({{.kv = std::vector<KvSpec>{kStatic, kSliding, kChunked, kSinks}[i % 4]}, StateLayer()});
    std::vector<SequenceLease> leases(static_cast<size_t>(between(1, 4)));
    leases[0] = cache_->NewLease();
    const int64_t shared = between(1, 40);
    for (int64_t left = between(1, shared); left > 0; left -= kStep) {
      ASSERT_TRUE(leases[0].Grow(std::min(left, kStep)).ok());
    }
    const int64_t end = shared + between(1, 20);
    SCOPED_TRACE(testing::Message() << "group " << i % 4 << ", " << leases.size() << " from " << leases[0].num_tokens()
                                    << " over " << shared << " to " << end);
    const Forks forks = {.count = static_cast<int64_t>(leases.size()) - 1, .shared_tokens = shared};
    const int64_t missing = cache_->MissingBytes(leases[0], end, kStep, forks);
    const int64_t before = cache_->available_bytes();
    const auto step = [&](SequenceLease* lease, int64_t until) {
      ASSERT_TRUE(lease->Grow(std::min(until - lease->num_tokens(), between(1, kStep))).ok());
      EXPECT_LE(before - cache_->available_bytes(), missing) << lease->num_tokens();
    };
    while (leases[0].num_tokens() < shared) step(&leases[0], shared);
    for (size_t f = 1; f < leases.size(); ++f) leases[f] = leases[0].Fork();
    for (size_t left = leases.size(); left > 0;) {
      SequenceLease& lease = leases[static_cast<size_t>(between(0, forks.count))];
      if (lease.num_tokens() == end) continue;
      step(&lease, end);
      if (lease.num_tokens() == end) --left;
    }
  }
}

}  // namespace
}  // namespace berth
