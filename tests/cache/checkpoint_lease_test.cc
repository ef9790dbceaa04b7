// What leases and the prefix index do with quantised checkpoints: who holds which unit when, and whose states are
// rounded.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

constexpr int kStates = 1;       // group of the states, of 512 bytes
constexpr int kCheckpoints = 2;  // and of their checkpoints, of 192; a block of tokens takes 128
constexpr int64_t kStateBytes = 512;
constexpr int64_t kCheckpointBytes = 192;
constexpr int64_t kBlockBytes = 128;

std::vector<LayerCacheSpec> Layers() { return WithWideStates({StaticLayer(), RecurrentLayer()}); }

std::vector<int32_t> Tokens(int count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class CheckpointLeaseTest : public ::testing::Test {
 protected:
  void Make(int64_t arena_bytes, bool checkpoints = true) {
    tiny_.emplace(Layers(), arena_bytes, /*piece_bytes=*/1, checkpoints);
    const std::vector<CacheGroup>& groups = cache().plan().groups;
    ASSERT_EQ(groups[0].unit_bytes, kBlockBytes);
    ASSERT_EQ(groups[kStates].unit_bytes, kStateBytes);
    if (checkpoints) {
      ASSERT_EQ(groups[kCheckpoints].unit_bytes, kCheckpointBytes);
    }
  }
  void SetUp() override { Make(1 << 16); }
  void TearDown() override { EXPECT_TRUE(cache().CheckIntegrity().ok()) << cache().CheckIntegrity(); }
  Cache& cache() { return *tiny_->cache; }
  PoolOccupancy Pool(int group) {
    Occupancy occupancy;
    cache().GetOccupancy(1, 1, &occupancy);
    EXPECT_EQ(occupancy.TotalBytes(), occupancy.arena_bytes);
    return occupancy.pools[group];
  }
  // Numbers that quantising changes.
  void Write(const SequenceLease& lease, int seed) {
    float* const state = State(lease);
    for (int i = 0; i < 128; ++i) state[i] = std::sin(static_cast<float>(seed * 1000 + i));
  }
  float* State(const SequenceLease& lease) {
    return reinterpret_cast<float*>(tiny_->storage->base() + lease.state_unit(kStates));
  }
  std::vector<float> Read(const SequenceLease& lease) { return {State(lease), State(lease) + 128}; }
  static void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
    EXPECT_NE(got, want) << "nothing was rounded";
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1.0 / 250) << i;
  }
  // A sequence of `tokens` that the index knows, with states of `seed`.
  SequenceLease Serve(const std::vector<int32_t>& tokens, int seed) {
    SequenceLease lease = cache().NewLease();
    lease.Share("");
    EXPECT_TRUE(lease.Grow(static_cast<int64_t>(tokens.size())).ok());
    Write(lease, seed);
    lease.Publish(tokens, /*checkpoint=*/true);
    return lease;
  }

  std::optional<TinyCache> tiny_;
};

TEST_F(CheckpointLeaseTest, TheIndexGetsACopyAndTheLeaseGoesOnInPlace) {
  SequenceLease lease = Serve(Tokens(10), 1);
  const std::vector<float> before = Read(lease);
  const int64_t unit = lease.state_unit(kStates);
  EXPECT_EQ(Pool(kStates).live_units, 1);
  EXPECT_EQ(Pool(kCheckpoints).cached_units, 1);
  EXPECT_EQ(Pool(kCheckpoints).cached_tokens, 1);
  ASSERT_TRUE(lease.Grow(3).ok());
  EXPECT_EQ(lease.state_unit(kStates), unit) << "nobody else reads it";
  EXPECT_EQ(Read(lease), before);
  lease.Publish(Tokens(13), /*checkpoint=*/true);
  lease.Publish(Tokens(13), /*checkpoint=*/true);
  EXPECT_EQ(Pool(kCheckpoints).cached_units, 2) << "one for each place";
  EXPECT_EQ(Pool(kStates).cached_units, 0);
}

TEST_F(CheckpointLeaseTest, AnotherHoldsTheCheckpointUntilItGrows) {
  SequenceLease first = Serve(Tokens(10), 1);
  const std::vector<float> states = Read(first);
  SequenceLease lease = cache().NewLease();
  EXPECT_EQ(lease.Adopt("", Tokens(12)).num_tokens, 10);
  EXPECT_EQ(Pool(kCheckpoints).live_units, 1);
  EXPECT_EQ(Pool(kStates).live_units, 1) << "the first one's";
  EXPECT_TRUE(cache().CheckIntegrity().ok()) << cache().CheckIntegrity();
  ASSERT_TRUE(lease.Grow(2).ok());
  EXPECT_EQ(Pool(kCheckpoints).live_units, 0);
  EXPECT_EQ(Pool(kCheckpoints).cached_units, 1);
  EXPECT_EQ(Pool(kStates).live_units, 2);
  ExpectNear(Read(lease), states);
  EXPECT_EQ(Read(first), states);
}

TEST_F(CheckpointLeaseTest, OneThatHasNotGrownCanBeForkedCroppedPublishedAndDropped) {
  const std::vector<float> states = Read(Serve(Tokens(10), 1));
  SequenceLease lease = cache().NewLease();
  ASSERT_EQ(lease.Adopt("", Tokens(12)).num_tokens, 10);
  lease.Publish(Tokens(12), /*checkpoint=*/true);
  SequenceLease fork = lease.Fork();
  EXPECT_EQ(Pool(kCheckpoints).shared_units, 1);
  EXPECT_EQ(fork.Crop(10), 10);
  ASSERT_TRUE(lease.Grow(1).ok());
  ASSERT_TRUE(fork.Grow(1).ok());
  ExpectNear(Read(fork), states);
  EXPECT_EQ(Read(fork), Read(lease));
  EXPECT_NE(fork.state_unit(kStates), lease.state_unit(kStates));
  SequenceLease dropped = cache().NewLease();
  ASSERT_EQ(dropped.Adopt("", Tokens(12)).num_tokens, 10);
  EXPECT_EQ(dropped.Crop(9), 0) << "there is no snapshot";
  EXPECT_EQ(Pool(kCheckpoints).live_units, 0);
  ASSERT_EQ(dropped.num_tokens(), 0);
}

TEST_F(CheckpointLeaseTest, SnapshotsGoBackToTheVeryStates) {
  SequenceLease first = Serve(Tokens(10), 1);
  first.SnapshotStates(2);
  const std::vector<float> exact = Read(first);
  ASSERT_TRUE(first.Grow(3).ok());
  Write(first, 2);
  first.Publish(Tokens(13), /*checkpoint=*/true);
  EXPECT_EQ(first.Crop(10), 10);
  ASSERT_TRUE(first.Grow(1).ok());
  EXPECT_EQ(Read(first), exact) << "not a checkpoint's";

  SequenceLease lease = cache().NewLease();
  ASSERT_EQ(lease.Adopt("", Tokens(12)).num_tokens, 10);
  lease.SnapshotStates(2);
  ASSERT_TRUE(lease.Grow(1).ok());
  const std::vector<float> started_from = Read(lease);
  Write(lease, 3);
  EXPECT_EQ(lease.Crop(10), 10);
  EXPECT_TRUE(cache().CheckIntegrity().ok()) << cache().CheckIntegrity();
  ASSERT_TRUE(lease.Grow(2).ok());
  EXPECT_EQ(Read(lease), started_from);
}

TEST_F(CheckpointLeaseTest, PublishingTakesNothingFromALease) {
  // States, 3 blocks, and less than a checkpoint.
  Make(kStateBytes + 3 * kBlockBytes + kBlockBytes);
  SequenceLease lease = Serve(Tokens(10), 1);
  EXPECT_EQ(Pool(kCheckpoints).cached_units, 0);
  EXPECT_EQ(Pool(0).live_units, 3);
  ASSERT_TRUE(lease.Grow(5).ok()) << "the last block is still to be had";
  lease = SequenceLease();
  SequenceLease next = cache().NewLease();
  const PrefixHit hit = next.Adopt("", Tokens(12));
  EXPECT_EQ(hit.num_tokens, 0);
  EXPECT_EQ(hit.matched_tokens, 10);
}

TEST_F(CheckpointLeaseTest, PublishingTakesWhatOnlyTheIndexHoldsOldestFirst) {
  Make(kStateBytes + 6 * kBlockBytes);
  Serve(Tokens(4, 100), 1);  // leaves a block and a checkpoint
  EXPECT_EQ(Pool(kCheckpoints).cached_units, 1);
  SequenceLease lease = Serve(Tokens(15), 2);  // of 768 bytes beside the states 512 and then a checkpoint's
  EXPECT_EQ(Pool(kCheckpoints).cached_units, 1);
  EXPECT_GT(Pool(0).evicted_units + Pool(kCheckpoints).evicted_units, 0);
  EXPECT_EQ(cache().available_bytes(), kBlockBytes * 2) << "what was published can be had as before";
  SequenceLease other = cache().NewLease();
  EXPECT_EQ(other.Adopt("", Tokens(16)).num_tokens, 15) << "the newer one is there";
}

// A sequence that has the arena for itself always finishes, whatever it started from.
TEST_F(CheckpointLeaseTest, WithoutRoomForBothTheCheckpointMakesWayForItsStates) {
  Make(kStateBytes + 3 * kBlockBytes);
  std::vector<float> states;
  {
    SequenceLease first = cache().NewLease();
    first.Share("");
    ASSERT_TRUE(first.Grow(4).ok());
    Write(first, 1);
    states = Read(first);
    first.Publish(Tokens(4), /*checkpoint=*/true);
    ASSERT_EQ(Pool(kCheckpoints).cached_units, 1);
  }
  SequenceLease lease = cache().NewLease();
  ASSERT_EQ(lease.Adopt("", Tokens(12)).num_tokens, 4);
  // 896 bytes in all: 128 and 192 are held, and 512 and 256 are wanted.
  EXPECT_LE(cache().MissingBytes(lease, 12, 12), cache().available_bytes());
  EXPECT_GT(cache().MissingBytes(lease, 13, 12), cache().available_bytes());
  ASSERT_TRUE(lease.Grow(8).ok());
  ExpectNear(Read(lease), states);
  EXPECT_EQ(Pool(kCheckpoints).live_units + Pool(kCheckpoints).cached_units, 0);
}

TEST_F(CheckpointLeaseTest, ASequencesSnapshotHoldsItsStatesAndAPrefixsACheckpoint) {
  SequenceLease first = Serve(Tokens(10), 1);
  const CachePlan& plan = cache().plan();
  const CacheSnapshot exact = first.Save();
  EXPECT_EQ(std::memcmp(exact.bytes.get() + 3 * kBlockBytes, State(first), kStateBytes), 0);
  SequenceLease lease = cache().NewLease();
  ASSERT_EQ(lease.Adopt("", Tokens(12)).num_tokens, 10);
  const CacheSnapshot snapshot = lease.Save();
  EXPECT_EQ(snapshot.size_bytes, lease.snapshot_bytes());
  EXPECT_EQ(snapshot.size_bytes, 3 * kBlockBytes + kStateBytes);
  EXPECT_TRUE(CheckSnapshot(plan, snapshot).ok()) << CheckSnapshot(plan, snapshot);
  EXPECT_FALSE(CheckPrefixSnapshot(plan, snapshot).ok());
  lease.Reset();
  absl::StatusOr<SequenceLease> back = cache().Restore(snapshot);
  ASSERT_TRUE(back.ok()) << back.status();
  ExpectNear(Read(*back), Read(first));

  CacheSnapshot prefix = PrefixLayout(plan, 10);
  EXPECT_EQ(prefix.size_bytes, 3 * kBlockBytes + kCheckpointBytes);
  prefix.bytes = std::make_unique<std::byte[]>(static_cast<size_t>(prefix.size_bytes));
  ASSERT_TRUE(cache().ReadPrefix("", Tokens(10), 0, prefix.size_bytes, &prefix));
  EXPECT_TRUE(CheckPrefixSnapshot(plan, prefix).ok()) << CheckPrefixSnapshot(plan, prefix);
  EXPECT_EQ(CheckSnapshot(plan, prefix).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache().Restore(prefix).status().code(), absl::StatusCode::kInvalidArgument);
  for (const int64_t piece : {7, 1 << 20}) {
    absl::StatusOr<SequenceLease> reserved = cache().Reserve(PrefixLayout(plan, 10));
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    for (int64_t at = 0; at < prefix.size_bytes; at += piece) {
      reserved->Load(prefix, at, std::min(at + piece, prefix.size_bytes));
    }
    EXPECT_EQ(Pool(kCheckpoints).live_units, 1);
    ASSERT_TRUE(reserved->Grow(1).ok());
    EXPECT_EQ(Read(*reserved), Read(*back)) << "the same checkpoint";
  }
}

TEST_F(CheckpointLeaseTest, SnapshotsOfAPlanWithOtherCheckpointsAreNotTaken) {
  SequenceLease quantised = Serve(Tokens(10), 1);
  CacheSnapshot prefix = PrefixLayout(cache().plan(), 10);
  prefix.bytes = std::make_unique<std::byte[]>(static_cast<size_t>(prefix.size_bytes));
  const TinyCache exact(Layers(), 1 << 16, /*piece_bytes=*/1);
  EXPECT_EQ(CheckPrefixSnapshot(exact.cache->plan(), prefix).code(), absl::StatusCode::kInvalidArgument);
  CacheSnapshot of_states = PrefixLayout(exact.cache->plan(), 10);
  of_states.bytes = std::make_unique<std::byte[]>(static_cast<size_t>(of_states.size_bytes));
  EXPECT_EQ(CheckPrefixSnapshot(cache().plan(), of_states).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(SnapshotServes(cache().plan(), 10, 9));
  // A sequence's are the same under both.
  EXPECT_TRUE(CheckSnapshot(exact.cache->plan(), quantised.Save()).ok());
}

TEST_F(CheckpointLeaseTest, ThreeTimesAsManyInTheSameArena) {
  int64_t kept[2];
  for (const bool checkpoints : {false, true}) {
    // States of 40 KiB.
    auto layers = std::vector<LayerCacheSpec>{{.states = {{.name = "recurrent", .shape = {160, 64}}}}};
    const TinyCache tiny(layers, 4 << 20, /*piece_bytes=*/1, checkpoints);
    for (int i = 0; i < 1000; ++i) {
      SequenceLease lease = tiny.cache->NewLease();
      lease.Share("");
      ASSERT_TRUE(lease.Grow(4).ok());
      lease.Publish(Tokens(4, 10 * i), /*checkpoint=*/true);
    }
    Occupancy occupancy;
    tiny.cache->GetOccupancy(1, 1, &occupancy);
    kept[checkpoints ? 1 : 0] = occupancy.pools[tiny.cache->plan().kept_group()].cached_units;
    ASSERT_TRUE(tiny.cache->CheckIntegrity().ok());
  }
  EXPECT_GE(kept[1], 36 * kept[0] / 10) << kept[0];
}

TEST_F(CheckpointLeaseTest, StatesThatWentWrongStayWrong) {
  SequenceLease first = Serve(Tokens(10), 1);
  ASSERT_TRUE(first.Grow(1).ok());
  State(first)[100] = std::nanf("");
  first.Publish(Tokens(11), /*checkpoint=*/true);
  SequenceLease lease = cache().NewLease();
  ASSERT_EQ(lease.Adopt("", Tokens(13)).num_tokens, 11);
  ASSERT_TRUE(lease.Grow(1).ok());
  for (int i = 0; i < 128; ++i) {
    EXPECT_EQ(std::isnan(State(lease)[i]), i / kCheckpointGroup == 100 / kCheckpointGroup) << i;
  }
}

}  // namespace
}  // namespace berth
