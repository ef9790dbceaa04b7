// Prefixes that leave the arena: when they move down, when they come back, and who waits for what meanwhile. The fake
// model reads back every byte that comes from a tier.
#include "scheduler/tiers/prefix_tier.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/scheduler/tiers/tier_harness.h"
#include "tests/testing/fake_prefix_disk.h"

namespace berth {
namespace {

const std::vector<std::vector<LayerCacheSpec>>& Models() {
  static const auto* const models = new std::vector<std::vector<LayerCacheSpec>>{
      {StaticLayer()}, {RecurrentLayer()}, {SlidingLayer(6), StaticLayer()}, {ChunkedLayer(8)}, HybridLayers()};
  return *models;
}

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

TEST(PrefixTier, TheDiskKeepsWhatHostMemoryDropsAndOutlivesTheProcess) {
  for (const std::vector<LayerCacheSpec>& layers : Models()) {
    SCOPED_TRACE(testing::Message() << "model " << &layers - Models().data());
    FakePrefixDisk disk;
    const int64_t host_bytes = 2 * SnapshotLayout(TinyCache(layers, 64).cache->plan(), 50, 0).size_bytes;
    RequestKey first = 0;
    Request next;
    {
      TierHarness h(layers, 64, Tiered(&disk, host_bytes));
      first = h.Run(h.MakeRequest(30, 7));
      for (int i = 0; i < 12; ++i) {
        h.Run(h.MakeRequest(30, 7));
        h.Idle();
      }
      EXPECT_GT(h.tier().host_evictions, 0);
      h.tiny.cache->EvictAll();
      const RequestKey second = h.Run(h.Next(first));
      EXPECT_EQ(h.records[second].num_cached, 30 + 7 - 1);
      EXPECT_EQ(h.tier().num_disk_reads, 1);
      EXPECT_LE(h.scheduler->host_tier().prefix_bytes, host_bytes);
      next = h.Next(second);
      h.scheduler->SaveAll(h.clock.Now());
      disk.Work();
    }
    TierHarness h(layers, 64, Tiered(&disk, host_bytes));
    EXPECT_EQ(h.tier().disk_bytes, disk.TotalBytes());
    h.last_key = next.key;
    const int64_t known = static_cast<int64_t>(next.prompt.size()) - 3 - 1;
    EXPECT_EQ(h.records[h.Run(next)].num_cached, known) << "what was never idle is there too";
  }
}

TEST(PrefixTier, AtTheEndMoreGoesToTheDiskThanTheHostTierHolds) {
  FakePrefixDisk disk;
  TierHarness h({StaticLayer()}, 64, Tiered(&disk, /*host_bytes=*/1500));
  ASSERT_LT(PrefixLayout(h.tiny.cache->plan(), 36).size_bytes, 1500);
  ASSERT_GT(2 * PrefixLayout(h.tiny.cache->plan(), 36).size_bytes, 1500);
  for (int i = 0; i < 4; ++i) h.Run(h.MakeRequest(30, 7));
  h.scheduler->SaveAll(h.clock.Now());
  disk.Work();
  EXPECT_EQ(disk.files.size(), 4u);
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

TEST(PrefixTier, TheDiskDropsItsOldest) {
  FakePrefixDisk disk;
  Scheduler::Options options = Tiered(&disk);
  options.prefixes.disk_limit_bytes = 4000;
  TierHarness h({StaticLayer()}, 64, options);
  for (int i = 0; i < 20; ++i) h.Run(h.MakeRequest(30, 7));
  h.Idle();
  h.Idle();
  disk.Work();
  EXPECT_EQ(h.tier().disk_bytes, disk.TotalBytes());
  EXPECT_LE(disk.TotalBytes(), 4000);
  EXPECT_EQ(disk.files.begin()->first, 18u) << "the last three fit";
  EXPECT_EQ(h.tier().disk_evictions, 17);
}

// Whether the callback of CallWhenGone has been called, with OK.
bool IsGone(TierHarness* h, FakePrefixDisk* disk) {
  bool gone = false;
  h->scheduler->CallWhenGone([&](const absl::Status& status) { gone = status.ok(); });
  EXPECT_EQ(gone, disk == nullptr || !disk->stalled);
  if (disk != nullptr) disk->Work();
  return gone;
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

TEST(PrefixTier, TheDiskKeepsToTheQuotaOfATenant) {
  FakePrefixDisk disk;
  Scheduler::Options options = Tiered(&disk);
  options.prefixes.quota = [](const std::string& salt) {
    return PrefixQuota{.bytes = salt == "small" ? 2000 : salt == "tiny" ? 100 : 0};
  };
  TierHarness h({StaticLayer()}, 64, options);
  const auto run = [&](const std::string& salt) {
    Request request = h.MakeRequest(30, 7);
    request.cache_salt = salt;
    h.Run(request);
    h.Idle();
    disk.Work();
  };
  for (int i = 0; i < 4; ++i) {
    for (const char* const salt : {"small", "tiny", "free"}) run(salt);
  }
  std::map<std::string, std::vector<uint64_t>> files;
  for (const auto& [id, file] : disk.files) files[file.salt].push_back(id);
  EXPECT_EQ(files["free"].size(), 4u);
  EXPECT_EQ(files["small"], std::vector<uint64_t>({7})) << "the last of its four";
  EXPECT_TRUE(files["tiny"].empty());
  EXPECT_EQ(h.tier().disk_bytes, disk.TotalBytes());
  EXPECT_EQ(h.tier().disk_evictions, 3);
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

TEST(PrefixTier, AFullDiskLeavesHostMemoryAndRests) {
  FakePrefixDisk disk;
  disk.on_write = [] { return absl::ResourceExhaustedError("full"); };
  TierHarness h({StaticLayer()}, 64, Tiered(&disk));
  const RequestKey first = h.Run(h.MakeRequest(30, 7));
  h.Idle();
  EXPECT_EQ(h.tier().full_disk, 1);
  EXPECT_EQ(h.tier().disk_bytes, 0);
  const RequestKey other = h.Run(h.MakeRequest(30, 7));
  h.Idle();
  EXPECT_EQ(h.tier().full_disk, 1) << "11 s later it is not tried again";
  h.tiny.cache->EvictAll();
  for (RequestKey key : {first, other}) EXPECT_EQ(h.records[h.Run(h.Next(key))].num_cached, 36);
  h.clock.Advance(absl::Seconds(60));
  disk.on_write = [] { return absl::OkStatus(); };
  h.Run(h.MakeRequest(30, 7));
  h.Idle();
  EXPECT_GT(h.tier().disk_bytes, 0);
}

// A prefix that is only on the disk, and a request that continues it.
struct OnDisk {
  explicit OnDisk(const std::vector<LayerCacheSpec>& layers, int64_t step_bytes = 1 << 20)
      : h(layers, 64, Tiered(&disk, 1 << 20, step_bytes)) {
    const RequestKey first = h.Run(h.MakeRequest(30, 7));
    h.scheduler->SaveAll(h.clock.Now());
    for (int i = 0; i < 3; ++i) h.scheduler->RunIdleWork(h.clock.Now());
    next = h.Next(first);
    h.scheduler = *Scheduler::Create(h.tiny.cache.get(), h.options);
    h.tiny.cache->EvictAll();
  }

  FakePrefixDisk disk;
  TierHarness h;
  Request next;
};

TEST(PrefixTier, RunningRowsContinueWhileOneWaitsForTheDisk) {
  OnDisk on(HybridLayers());
  TierHarness& h = on.h;
  const RequestKey running = h.Add(h.MakeRequest(4, 40));
  h.Step();
  h.Step();
  on.disk.stalled = true;
  const RequestKey waiting = h.Add(on.next);
  for (int i = 0; i < 10; ++i) {
    const size_t before = h.records[running].tokens.size();
    h.Step();
    EXPECT_EQ(h.records[running].tokens.size(), before + 1);
  }
  EXPECT_TRUE(h.records[waiting].tokens.empty());
  EXPECT_EQ(on.disk.num_reads, 1);
  on.disk.stalled = false;
  h.RunToEnd();
  EXPECT_EQ(h.records[waiting].num_cached, 36);
  h.ExpectIdleThenNothingOwed();
}

TEST(PrefixTier, WhoIsCancelledOrTooLateDoesNotWaitForTheDisk) {
  for (const bool cancelled : {true, false}) {
    OnDisk on(HybridLayers());
    TierHarness& h = on.h;
    on.disk.stalled = true;
    if (!cancelled) on.next.deadline = h.clock.Now() + absl::Seconds(5);
    const RequestKey waiting = h.Add(on.next);
    for (int i = 0; i < 3; ++i) {
      h.Step();
      EXPECT_TRUE(h.shapes.empty()) << "nothing is to be computed";
    }
    if (cancelled) h.scheduler->Cancel(waiting, FinishReason::kCancelled);
    if (!cancelled) h.clock.Advance(absl::Seconds(6));
    h.Step();
    EXPECT_EQ(h.records[waiting].finish, cancelled ? FinishReason::kCancelled : FinishReason::kDeadline);
    EXPECT_TRUE(h.scheduler->empty());
    on.disk.stalled = false;
    h.Idle();
    Request again = on.next;
    again.key = ++h.last_key;
    again.deadline = absl::InfiniteFuture();
    EXPECT_EQ(h.records[h.Run(again)].num_cached, 36);
    EXPECT_EQ(on.disk.num_reads, 1) << "what was read stays in host memory";
    h.ExpectIdleThenNothingOwed();
  }
}

TEST(PrefixTier, WhoWaitsForADroppedFileIsComputed) {
  OnDisk on(HybridLayers());
  TierHarness& h = on.h;
  on.disk.stalled = true;
  const RequestKey waiting = h.Add(on.next);
  h.Step();
  ASSERT_EQ(on.disk.num_reads, 1);
  h.scheduler->DropPrefixes("");
  on.disk.stalled = false;
  h.RunToEnd();
  EXPECT_EQ(h.records[waiting].num_cached, 0);
  EXPECT_TRUE(IsGone(&h, &on.disk));
  EXPECT_TRUE(on.disk.files.empty());
  EXPECT_EQ(h.tier().disk_bytes, 0);
  h.ExpectIdleThenNothingOwed();
}

TEST(PrefixTier, WhatIsComingBackIsDropped) {
  for (const std::string salt : {"", "other"}) {
    OnDisk on(HybridLayers(), /*step_bytes=*/100);
    TierHarness& h = on.h;
    h.Add(h.MakeRequest(4, 60));
    h.Step();
    const RequestKey waiting = h.Add(on.next);
    for (int i = 0; i < 4; ++i) h.Step();
    ASSERT_TRUE(h.records[waiting].tokens.empty()) << "it is on its way";
    h.scheduler->DropPrefixes(salt);
    h.RunToEnd();
    EXPECT_EQ(h.records[waiting].num_cached, salt.empty() ? 0 : 36);
    h.ExpectIdleThenNothingOwed();
  }
}

TEST(PrefixTier, ATornFileIsComputedAgain) {
  OnDisk on(HybridLayers());
  on.disk.on_read = [] { return absl::DataLossError("torn"); };
  EXPECT_EQ(on.h.records[on.h.Run(on.next)].num_cached, 0);
  EXPECT_EQ(on.h.tier().torn_files, 1);
  EXPECT_EQ(on.h.tier().disk_bytes, on.disk.TotalBytes());
  on.h.ExpectIdleThenNothingOwed();
}

TEST(PrefixTier, ALargeOneComesBackInPiecesBetweenSteps) {
  constexpr int64_t kStepBytes = 100;
  OnDisk on(HybridLayers(), kStepBytes);
  TierHarness& h = on.h;
  const RequestKey running = h.Add(h.MakeRequest(4, 60));
  h.Step();
  h.Step();
  const RequestKey waiting = h.Add(on.next);
  int num_steps = 0;
  while (h.records[waiting].tokens.empty()) {
    const size_t before = h.records[running].tokens.size();
    h.Step();
    EXPECT_EQ(h.records[running].tokens.size(), before + 1);
    ++num_steps;
  }
  const int64_t bytes = SnapshotLayout(h.tiny.cache->plan(), 36, 0).size_bytes;
  EXPECT_GE(num_steps, bytes / kStepBytes);
  h.RunToEnd();
  EXPECT_EQ(h.records[waiting].num_cached, 36);
  h.ExpectIdleThenNothingOwed();
}

TEST(PrefixTier, WhoNeedsTheArenaTakesItFromWhatIsComingBack) {
  OnDisk on({StaticLayer()}, /*step_bytes=*/8);
  TierHarness& h = on.h;
  h.Add(h.MakeRequest(4, 470));  // all 128 blocks but few
  h.Step();
  while (h.records[h.last_key].tokens.size() < 430) h.Step();
  h.Add(on.next);
  h.RunToEnd();
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
