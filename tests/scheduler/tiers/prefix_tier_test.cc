// Prefixes that leave the arena: when they move down, when they come back, and who waits for what meanwhile. The fake
// model reads back every byte that comes from a tier.
#include "scheduler/tiers/prefix_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/scheduler/tiers/tier_harness.h"
#include "tests/testing/fake_prefix_disk.h"

namespace berth {
namespace {

TEST(PrefixTier, WhatNobodyUsesMovesDownAndComesBackFromHostMemory) {
  for (const std::vector<LayerCacheSpec>& layers : Models()) {
    SCOPED_TRACE(testing::Message() << "model " << &layers - Models().data());
    TierHarness h(layers, 64, Tiered());
    const RequestKey first = h.Run(h.MakeRequest(30, 7));
    EXPECT_EQ(h.scheduler->host_tier().prefix_bytes, 0) << "it was used just now";
    h.Idle();
    EXPECT_GT(h.scheduler->host_tier().prefix_bytes, 0);
    h.tiny.cache->EvictAll();
    const RequestKey second = h.Run(h.Next(first));
    EXPECT_EQ(h.records[second].num_cached, 30 + 7 - 1);
    EXPECT_EQ(h.tier().num_hits, 1);
    EXPECT_EQ(h.tier().restored_tokens, 30 + 7 - 1);
    h.Run(h.Next(first, 5));
    EXPECT_EQ(h.tier().num_hits, 1) << "the arena holds it again";
    h.ExpectIdleThenNothingOwed();
  }
}

TEST(PrefixTier, OthersThatNeedTheArenaPushItDown) {
  for (const std::vector<LayerCacheSpec>& layers : Models()) {
    SCOPED_TRACE(testing::Message() << "model " << &layers - Models().data());
    TierHarness h(layers, 24, Tiered());
    const RequestKey first = h.Run(h.MakeRequest(20, 6));
    for (int i = 0; i < 60; ++i) h.Run(h.MakeRequest(20, 5));
    const RequestKey second = h.Run(h.Next(first));
    EXPECT_EQ(h.records[second].num_cached, 20 + 6 - 1);
    EXPECT_EQ(h.tier().num_hits, 1);
    h.ExpectIdleThenNothingOwed();
  }
}

TEST(PrefixTier, AnotherTenantDoesNotFindIt) {
  TierHarness h({StaticLayer()}, 64, Tiered());
  const RequestKey first = h.Run(h.MakeRequest(30, 7));
  h.Idle();
  h.tiny.cache->EvictAll();
  for (const bool shares : {true, false}) {
    Request other = h.Next(first);
    other.share_prefix = shares;
    if (shares) other.cache_salt = "other";
    EXPECT_EQ(h.records[h.Run(other)].num_cached, 0);
  }
  EXPECT_EQ(h.tier().num_hits, 0);
}

TEST(PrefixTier, WithoutStatesItServesEveryBeginningAndKeepsTheLongestOnly) {
  TierHarness h({StaticLayer(), OtherStaticLayer()}, 64, Tiered());
  const RequestKey first = h.Run(h.MakeRequest(30, 7));
  h.Idle();
  const int64_t bytes = h.scheduler->host_tier().prefix_bytes;
  const RequestKey second = h.Run(h.Next(first));
  h.Idle();
  EXPECT_EQ(h.scheduler->host_tier().prefix_bytes, bytes / 9 * 11) << "43 tokens in the place of 36";
  h.tiny.cache->EvictAll();
  Request part = h.MakeRequest(21, 2);
  std::copy_n(h.requests[second].prompt.begin(), 17, part.prompt.begin());
  EXPECT_EQ(h.records[h.Run(part)].num_cached, 17);
  h.ExpectIdleThenNothingOwed();
}

TEST(PrefixTier, WithStatesWhereTwoPromptsPartIsKept) {
  TierHarness h(HybridLayers(), 64, Tiered());
  const Request base = h.MakeRequest(30, 3);
  const auto branch = [&](int32_t token) {
    Request request = base;
    request.key = ++h.last_key;
    request.sampling.seed = request.key;
    for (size_t i = 22; i < request.prompt.size(); ++i) request.prompt[i] = token;
    return request;
  };
  h.Run(branch(1));
  h.Run(branch(2));
  h.Idle();
  h.tiny.cache->EvictAll();
  EXPECT_EQ(h.records[h.Run(branch(3))].num_cached, 22);
  h.ExpectIdleThenNothingOwed();
}

// However fast prefixes come and go, the queue has no more of them than the arena could hold.
TEST(PrefixTier, TheQueueIsBounded) {
  TierHarness h({StaticLayer()}, 16, Tiered(/*disk=*/nullptr, 1 << 20, /*step_bytes=*/1));  // copies nothing
  h.Add(1, 100);
  while (h.records[1].num_ends == 0) {  // a step is always under way
    h.Add(20, 1);
    h.Step();
  }
  EXPECT_GT(h.tier().lost, 20);
  EXPECT_LT(h.tier().lost, static_cast<int64_t>(h.records.size()) - 20) << "what the arena may hold stays queued";
}

// A quantised checkpoint goes down, through the disk, and up again as it is, and what comes back is found once more.
TEST(PrefixTier, QuantisedCheckpointsMoveAsTheyAre) {
  for (const auto& layers : {WithWideStates(HybridLayers()), WithWideStates({RecurrentLayer()})}) {
    FakePrefixDisk disk;
    const auto harness = [&] { return TierHarness(layers, 128, Tiered(&disk), 256, /*checkpoints=*/true); };
    Request next;
    {
      TierHarness h = harness();
      const CachePlan& plan = h.tiny.cache->plan();
      const RequestKey first = h.Run(h.MakeRequest(30, 7));
      h.Idle();
      EXPECT_GT(h.scheduler->host_tier().prefix_bytes, 0);
      EXPECT_LT(PrefixLayout(plan, 36).size_bytes, SnapshotLayout(plan, 36, 0).size_bytes - 300);
      h.tiny.cache->EvictAll();
      const RequestKey second = h.Run(h.Next(first));
      EXPECT_EQ(h.records[second].num_cached, 30 + 7 - 1);
      EXPECT_EQ(h.tier().num_hits, 1);
      h.Run(h.Next(first, 5));
      EXPECT_EQ(h.tier().num_hits, 1) << "the arena holds it again";
      next = h.Next(second);
      h.scheduler->SaveAll(h.clock.Now());
      disk.Work();
      h.ExpectIdleThenNothingOwed();
    }
    TierHarness h = harness();
    h.last_key = next.key;
    const RequestKey third = h.Run(next);
    EXPECT_EQ(h.records[third].num_cached, static_cast<int64_t>(next.prompt.size()) - 3 - 1);
    EXPECT_EQ(h.tier().num_disk_reads, 1);
    h.ExpectIdleThenNothingOwed();
    // Snapshots of the states themselves, of a process without the flag, are not taken for these.
    TierHarness other(layers, 128, Tiered(&disk), 256, /*checkpoints=*/false);
    other.last_key = next.key;
    EXPECT_EQ(other.records[other.Run(next)].num_cached, 0);
    EXPECT_GT(other.tier().foreign_files, 0);
  }
}

TEST(PrefixTier, DroppingTakesThePrefixesOfATenantFromAllTiers) {
  for (const std::vector<LayerCacheSpec>& layers : Models()) {
    SCOPED_TRACE(testing::Message() << "model " << &layers - Models().data());
    FakePrefixDisk disk;
    TierHarness h(layers, 64, Tiered(&disk));
    std::map<std::string, RequestKey> first;
    for (const std::string salt : {"a", "ab", "b"}) {
      Request request = h.MakeRequest(30, 7);
      request.cache_salt = salt;
      first[salt] = h.Run(request);
    }
    h.Idle();
    const int64_t host = h.scheduler->host_tier().prefix_bytes;
    const int64_t on_disk = disk.TotalBytes();
    Request queued = h.MakeRequest(20, 5);  // in the arena only
    queued.cache_salt = "a";
    h.Run(queued);
    const int64_t free = h.tiny.cache->available_bytes();
    const FreedBytes freed = h.scheduler->DropPrefixes("a");
    EXPECT_GT(freed.arena, 0);
    EXPECT_EQ(h.tiny.cache->available_bytes(), free);
    EXPECT_EQ(freed.host_tier, host - h.scheduler->host_tier().prefix_bytes);
    EXPECT_EQ(freed.host_tier, host / 3);
    EXPECT_TRUE(IsGone(&h, &disk));
    EXPECT_EQ(freed.disk_tier, on_disk - disk.TotalBytes());
    EXPECT_EQ(disk.files.size(), 2u);
    EXPECT_EQ(h.tier().disk_bytes, disk.TotalBytes());
    h.tiny.cache->EvictAll();
    EXPECT_EQ(h.records[h.Run(h.Next(first["a"]))].num_cached, 0);
    EXPECT_EQ(h.records[h.Run(h.Next(first["ab"]))].num_cached, 36);
    h.scheduler->DropPrefixes(std::nullopt);
    EXPECT_TRUE(IsGone(&h, &disk));
    EXPECT_EQ(h.scheduler->host_tier().prefix_bytes, 0);
    EXPECT_TRUE(disk.files.empty());
    EXPECT_EQ(h.GetOccupancy().FreeBytes(), h.baseline.FreeBytes());
    EXPECT_EQ(h.records[h.Run(h.Next(first["b"]))].num_cached, 0);
    h.ExpectIdleThenNothingOwed();
  }
}

TEST(PrefixTier, DroppingWithoutADiskIsDoneAtOnce) {
  TierHarness h({StaticLayer()}, 64, Tiered());
  h.Run(h.MakeRequest(30, 7));
  h.Idle();
  EXPECT_GT(h.scheduler->DropPrefixes("").host_tier, 0);
  EXPECT_TRUE(IsGone(&h, nullptr));
  EXPECT_EQ(h.scheduler->host_tier().prefix_bytes, 0);
}

TEST(PrefixTier, WhatIsBeingWrittenIsDroppedToo) {
  FakePrefixDisk disk;
  TierHarness h({StaticLayer()}, 64, Tiered(&disk));
  disk.stalled = true;
  h.Run(h.MakeRequest(30, 7));
  h.Idle();
  ASSERT_GT(h.tier().disk_bytes, 0);
  ASSERT_TRUE(disk.files.empty());
  h.scheduler->DropPrefixes("");
  EXPECT_EQ(h.tier().disk_bytes, 0);
  EXPECT_TRUE(IsGone(&h, &disk));
  EXPECT_TRUE(disk.files.empty());
  disk.stalled = false;
  h.Idle();  // takes in the write
  EXPECT_EQ(h.tier().disk_bytes, 0);
  EXPECT_EQ(h.scheduler->host_tier().prefix_bytes, 0);
  h.Run(h.MakeRequest(30, 7));
  h.Idle();
  EXPECT_EQ(h.tier().disk_bytes, disk.TotalBytes());
}

TEST(PrefixTier, FilesThatWereNotUsedForTheirTenantsAgeGo) {
  FakePrefixDisk disk;
  Scheduler::Options options = Tiered(&disk);
  options.prefixes.quota = [](const std::string& salt) {
    return PrefixQuota{.age = salt == "brief" ? absl::Minutes(10) : absl::InfiniteDuration()};
  };
  TierHarness h({StaticLayer()}, 64, options);
  for (const std::string salt : {"a", "brief", "c"}) {
    Request request = h.MakeRequest(30, 7);
    request.cache_salt = salt;
    h.Run(request);
  }
  h.Idle();
  disk.Work();
  EXPECT_EQ(disk.files.size(), 3u);
  for (auto& [id, file] : disk.files) file.used = h.clock.Now();
  const absl::Time start = h.clock.Now();
  const auto num_files_at = [&](Scheduler* scheduler, absl::Duration time) {
    scheduler->RunIdleWork(start + time);
    EXPECT_LE(scheduler->NextIdleWork(start + time), start + time + absl::Minutes(1)) << "the engine wakes up for it";
    disk.Work();
    return disk.files.size();
  };
  EXPECT_EQ(num_files_at(h.scheduler.get(), absl::Minutes(9)), 3u);
  EXPECT_EQ(num_files_at(h.scheduler.get(), absl::Minutes(11)), 2u);
  EXPECT_EQ(h.tier().disk_bytes, disk.TotalBytes());
  // The time while no server ran counts too.
  disk.files.begin()->second.salt = "brief";
  TierHarness later({StaticLayer()}, 64, options);
  EXPECT_EQ(num_files_at(later.scheduler.get(), absl::Minutes(9)), 2u);
  EXPECT_EQ(num_files_at(later.scheduler.get(), absl::Minutes(20)), 1u);
}

// What it shares with those that run takes no room, but a copy of its own would.
TEST(PrefixTier, WhoFitsOnlyByWhatItSharesDoesNotWaitForRoom) {
  TierHarness h({StaticLayer()}, 32, Tiered());  // 64 blocks
  Request conversation = h.MakeRequest(125, 7);
  const std::vector<int32_t> prompt(conversation.prompt.begin(), conversation.prompt.begin() + 120);
  const RequestKey first = h.Run(conversation);
  h.Idle();
  h.tiny.cache->EvictAll();
  std::vector<RequestKey> running;
  for (int i = 0; i < 2; ++i) {
    Request request = h.MakeRequest(124, 60);
    std::copy(prompt.begin(), prompt.end(), request.prompt.begin());
    running.push_back(h.Add(request));
  }
  const auto longest = [&] {
    return std::max(h.records[running[0]].tokens.size(), h.records[running[1]].tokens.size());
  };
  while (longest() < 40) h.Step();  // 30 blocks are shared, and each has 11 of its own
  const RequestKey returning = h.Add(h.Next(first));
  while (h.records[returning].tokens.empty()) {
    ASSERT_LT(longest(), 50U) << "it waits for those that run";
    h.Step();
  }
  h.RunToEnd();
  EXPECT_GE(h.records[returning].num_cached, 120);
  h.ExpectIdleThenNothingOwed();
}

TEST(PrefixTier, WhereCopyingCostsMoreThanComputingNothingMoves) {
  TierHarness h({StaticLayer()}, 64, Tiered());
  h.Run(h.MakeRequest(30, 7));
  h.Idle();  // the first copy is tried
  per_look = absl::Seconds(100);
  const RequestKey first = h.Run(h.MakeRequest(30, 7));
  h.Idle();
  const RequestKey second = h.Run(h.MakeRequest(30, 7));
  h.Idle();
  h.tiny.cache->EvictAll();
  h.Run(h.Next(first));
  h.Run(h.Next(second));
  EXPECT_EQ(h.tier().num_hits, 0);
  per_look = absl::ZeroDuration();
}

TEST(PrefixTier, APreemptedSequenceTakesThePrefixesRoom) {
  Scheduler::Options options = Tiered(nullptr, /*host_bytes=*/128 * 12);
  TierHarness h({StaticLayer()}, 8, options);
  for (int i = 0; i < 4; ++i) h.Run(h.MakeRequest(10, 7));
  h.Idle();
  EXPECT_GT(h.scheduler->host_tier().prefix_bytes, 0);
  h.Add(10, 34);
  h.Add(10, 34);
  int64_t most = 0;
  while (!h.scheduler->empty()) {
    h.Step();
    const HostTier& tier = h.scheduler->host_tier();
    most = std::max(most, tier.sequence_bytes);
    EXPECT_LE(tier.sequence_bytes + tier.prefix_bytes, tier.limit_bytes);
  }
  EXPECT_GT(most, 0);
  EXPECT_GT(h.tier().host_evictions, 0);
  h.ExpectIdleThenNothingOwed();
}

TEST(PrefixTier, AResumedCacheInTheQueueCounts) {
  RecordingSaveSink sink;
  Scheduler::Options options = Tiered(nullptr, 5000);
  options.max_running = 1;
  options.save_sink = &sink;
  TierHarness h({StaticLayer()}, 64, options);
  Request request = h.MakeRequest(30, 20);
  request.saved = true;
  request.autosave_tokens = 5;
  h.Run(request);
  ASSERT_FALSE(sink.taken.empty());
  CacheSnapshot& snapshot = sink.taken[0].progress->snapshot;
  const int64_t bytes = snapshot.size_bytes;
  ASSERT_GT(bytes, 0);
  h.Add(h.MakeRequest(4, 30));  // takes the only place
  h.Step();
  Request resumed = request;
  resumed.key = ++h.last_key;
  resumed.progress = std::make_shared<Progress>(std::move(*sink.taken[0].progress));
  h.Add(resumed);
  EXPECT_EQ(h.scheduler->host_tier().sequence_bytes, bytes);
  h.RunToEnd();
  h.ExpectIdleThenNothingOwed();
}

}  // namespace
}  // namespace berth
