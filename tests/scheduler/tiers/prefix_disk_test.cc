// Prefixes on the disk: what is written and dropped, and who waits for what is read. The fake model reads back every
// byte that comes from a tier.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/load/step_progress.h"
#include "scheduler/tiers/prefix_tier.h"
#include "tests/scheduler/tiers/tier_harness.h"
#include "tests/testing/fake_prefix_disk.h"

namespace berth {
namespace {

TEST(PrefixDisk, TheDiskKeepsWhatHostMemoryDropsAndOutlivesTheProcess) {
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

TEST(PrefixDisk, AtTheEndMoreGoesToTheDiskThanTheHostTierHolds) {
  FakePrefixDisk disk;
  TierHarness h({StaticLayer()}, 64, Tiered(&disk, /*host_bytes=*/1500));
  ASSERT_LT(PrefixLayout(h.tiny.cache->plan(), 36).size_bytes, 1500);
  ASSERT_GT(2 * PrefixLayout(h.tiny.cache->plan(), 36).size_bytes, 1500);
  for (int i = 0; i < 4; ++i) h.Run(h.MakeRequest(30, 7));
  h.scheduler->SaveAll(h.clock.Now());
  disk.Work();
  EXPECT_EQ(disk.files.size(), 4u);
}

TEST(PrefixDisk, AtTheEndAWatchdogSeesEachCopyAndNotTheWaitForTheDisk) {
  FakePrefixDisk disk;
  StepProgress progress;
  Scheduler::Options options = Tiered(&disk, /*host_bytes=*/1500);  // room for one
  options.progress = &progress;
  TierHarness h({StaticLayer()}, 64, options);
  for (int i = 0; i < 4; ++i) h.Run(h.MakeRequest(30, 7));
  std::vector<StepPhase> phases;
  disk.on_sync = [&] {
    phases.push_back(progress.Read().phase);
    return absl::OkStatus();
  };
  progress.Enter(StepPhase::kPlan);
  const uint64_t beat = progress.Read().beat;
  h.scheduler->SaveAll(h.clock.Now());
  EXPECT_EQ(phases, std::vector<StepPhase>(3, StepPhase::kIdle));
  EXPECT_GE(progress.Read().beat, beat + 4 + phases.size());
}

TEST(PrefixDisk, TheDiskDropsItsOldest) {
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

TEST(PrefixDisk, TheDiskKeepsToTheQuotaOfATenant) {
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

TEST(PrefixDisk, AFullDiskLeavesHostMemoryAndRests) {
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

TEST(PrefixDisk, AFileStaysUntilALongerOneIsWritten) {
  FakePrefixDisk disk;
  TierHarness h({StaticLayer()}, 64, Tiered(&disk));
  const RequestKey first = h.Run(h.MakeRequest(30, 7));
  h.Idle();
  const int64_t bytes = h.tier().disk_bytes;
  EXPECT_GT(bytes, 0);
  disk.on_write = [] { return absl::ResourceExhaustedError("full"); };
  const RequestKey second = h.Run(h.Next(first));  // its write fails
  h.Idle();
  const RequestKey third = h.Run(h.Next(second));  // it is not tried
  h.Idle();
  EXPECT_EQ(h.tier().full_disk, 1);
  EXPECT_EQ(h.tier().disk_bytes, bytes);
  EXPECT_EQ(disk.TotalBytes(), bytes);
  disk.on_write = [] { return absl::OkStatus(); };
  h.clock.Advance(absl::Seconds(60));
  h.Run(h.Next(third));
  h.Idle();
  EXPECT_GT(h.tier().disk_bytes, bytes);
  EXPECT_LT(h.tier().disk_bytes, 2 * bytes) << "the file of the shorter one stays";
  disk.Work();
  EXPECT_EQ(disk.TotalBytes(), h.tier().disk_bytes);
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

TEST(PrefixDisk, RunningRowsContinueWhileOneWaitsForTheDisk) {
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

TEST(PrefixDisk, WhoIsCancelledOrTooLateDoesNotWaitForTheDisk) {
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

TEST(PrefixDisk, WhoWaitsForADroppedFileIsComputed) {
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

TEST(PrefixDisk, WhatIsComingBackIsDropped) {
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

TEST(PrefixDisk, ATornFileIsComputedAgain) {
  OnDisk on(HybridLayers());
  on.disk.on_read = [] { return absl::DataLossError("torn"); };
  EXPECT_EQ(on.h.records[on.h.Run(on.next)].num_cached, 0);
  EXPECT_EQ(on.h.tier().torn_files, 1);
  EXPECT_EQ(on.h.tier().disk_bytes, on.disk.TotalBytes());
  on.h.ExpectIdleThenNothingOwed();
}

TEST(PrefixDisk, ALargeOneComesBackInPiecesBetweenSteps) {
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

TEST(PrefixDisk, WhoNeedsTheArenaTakesItFromWhatIsComingBack) {
  OnDisk on({StaticLayer()}, /*step_bytes=*/8);
  TierHarness& h = on.h;
  h.Add(h.MakeRequest(4, 470));  // all 128 blocks but few
  h.Step();
  while (h.records[h.last_key].tokens.size() < 430) h.Step();
  h.Add(on.next);
  h.RunToEnd();
  h.ExpectIdleThenNothingOwed();
}

}  // namespace
}  // namespace berth
