// The files of the disk tier: what comes back, and what is done with those that are torn, foreign or half-written.
#include "server/storage/disk_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/storage/prefix_file.h"
#include "tests/testing/tiny_cache.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}
void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class DiskTierTest : public ::testing::Test {
 protected:
  DiskTierTest() : folder_(std::string(std::getenv("TEST_TMPDIR")) + "/tier") {
    fs::remove_all(folder_);
    plan_ = *BuildCachePlan({StaticLayer(), RecurrentLayer()}, kTinyBlockTokens);
    for (int32_t i = 0; i < 10; ++i) tokens_.push_back(i * 3);
  }

  absl::Status Open(const std::string& identity = "model") {
    tier_.reset();
    auto tier = DiskTier::Open({.folder = folder_, .identity = identity, .plan = plan_});
    if (tier.ok()) tier_ = *std::move(tier);
    return tier.status();
  }
  PrefixDisk::Found Reopen(const std::string& identity = "model") {
    EXPECT_TRUE(Open(identity).ok());
    return tier_->TakeFound();
  }
  std::shared_ptr<CacheSnapshot> Snapshot(int first = 0) {
    auto snapshot = std::make_shared<CacheSnapshot>(SnapshotLayout(plan_, 10, 0));
    snapshot->bytes = std::make_unique<std::byte[]>(static_cast<size_t>(snapshot->size_bytes));
    for (int64_t i = 0; i < snapshot->size_bytes; ++i) snapshot->bytes[i] = static_cast<std::byte>(first + i);
    return snapshot;
  }
  PrefixDisk::Result Result() {
    std::vector<PrefixDisk::Result> results;
    WaitUntil(
        [&] {
          results = tier_->TakeResults();
          return !results.empty();
        },
        "a result");
    return std::move(results[0]);
  }
  uint64_t Write(int first = 0) {
    const uint64_t id = tier_->Write("salt", tokens_, Snapshot(first));
    const PrefixDisk::Result result = Result();
    EXPECT_TRUE(result.written && result.id == id && result.status.ok()) << result.status;
    return id;
  }
  PrefixDisk::Result Read(uint64_t id) {
    tier_->Read(id);
    return Result();
  }
  std::string BackendOf(uint64_t id) const {
    return absl::StrCat(folder_, "/", absl::Hex(id, absl::kZeroPad16), ".prefix");
  }

  std::string folder_;
  CachePlan plan_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierTest, WhatIsWrittenComesBackFromThisProcessAndTheNext) {
  ASSERT_TRUE(Open().ok());
  const uint64_t id = Write(7);
  const PrefixDisk::Found found = Reopen();
  ASSERT_EQ(found.files.size(), 1u);
  EXPECT_EQ(found.files[0].id, id);
  EXPECT_EQ(found.files[0].salt, "salt");
  EXPECT_EQ(found.files[0].tokens, tokens_);
  EXPECT_EQ(found.files[0].size_bytes, static_cast<int64_t>(fs::file_size(BackendOf(id))));
  EXPECT_EQ(found.files[0].size_bytes, tier_->FileBytes("salt", 10, Snapshot()->size_bytes));
  const PrefixDisk::Result result = Read(id);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(std::memcmp(result.snapshot->bytes.get(), Snapshot(7)->bytes.get(), Snapshot()->size_bytes), 0);
  EXPECT_TRUE(CheckSnapshot(plan_, *result.snapshot).ok());
  EXPECT_GT(Write(8), id) << "an id is never used twice";
  tier_->Remove(id);
  tier_.reset();
  EXPECT_FALSE(fs::exists(BackendOf(id)));
}

TEST_F(DiskTierTest, TheLeastRecentlyUsedComeFirst) {
  ASSERT_TRUE(Open().ok());
  const uint64_t a = Write();
  const uint64_t b = Write();
  for (const uint64_t id : {a, b})
    fs::last_write_time(BackendOf(id), fs::file_time_type::clock::now() - std::chrono::hours(id));
  ASSERT_TRUE(Read(b).status.ok());
  const PrefixDisk::Found found = Reopen();
  ASSERT_EQ(found.files.size(), 2u);
  EXPECT_EQ(found.files[1].id, b);
  EXPECT_GT(absl::Now() - found.files[0].used, absl::Minutes(59));
  EXPECT_LT(absl::Now() - found.files[1].used, absl::Minutes(59));
}

TEST_F(DiskTierTest, AFileTornAnywhereIsNeverUsedAndGoes) {
  ASSERT_TRUE(Open().ok());
  const uint64_t id = Write();
  const std::string whole = ReadBytes(BackendOf(id));
  for (int part = 0; part < 16; ++part) {
    const std::string torn = whole.substr(0, whole.size() * part / 16);
    WriteBytes(BackendOf(id), torn);
    EXPECT_EQ(Read(id).status.code(), absl::StatusCode::kDataLoss) << part;
    EXPECT_FALSE(fs::exists(BackendOf(id)));
    WriteBytes(BackendOf(id), torn);
    const PrefixDisk::Found found = Reopen();
    EXPECT_TRUE(found.files.empty());
    EXPECT_EQ(found.num_torn, 1);
    EXPECT_FALSE(fs::exists(BackendOf(id)));
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    WriteBytes(BackendOf(id), changed);
    EXPECT_FALSE(Read(id).status.ok()) << "byte " << i;
  }
}

TEST_F(DiskTierTest, QuantisedCheckpointsComeBackAndHaveAnotherIdentity) {
  const std::vector<LayerCacheSpec> layers = WithWideStates({StaticLayer(), RecurrentLayer()});
  plan_ = *BuildCachePlan(layers, kTinyBlockTokens);
  const std::string exact = CacheIdentity("model", plan_, 0);
  QuantiseCheckpoints(layers, &plan_);
  const std::string quantised = CacheIdentity("model", plan_, 0);
  EXPECT_NE(exact, quantised);
  ASSERT_TRUE(Open(quantised).ok());
  auto snapshot = std::make_shared<CacheSnapshot>(PrefixLayout(plan_, 10));
  snapshot->bytes = std::make_unique<std::byte[]>(static_cast<size_t>(snapshot->size_bytes));
  const uint64_t id = tier_->Write("salt", tokens_, snapshot);
  ASSERT_TRUE(Result().status.ok());
  const PrefixDisk::Result result = Read(id);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(CheckPrefixSnapshot(plan_, *result.snapshot).ok());
  EXPECT_EQ(Reopen(quantised).files.size(), 1u);
  EXPECT_TRUE(Reopen(exact).files.empty());
}

TEST_F(DiskTierTest, AnotherModelsFilesAreNeverUsedAndGo) {
  ASSERT_TRUE(Open().ok());
  const uint64_t id = Write();
  const PrefixDisk::Found found = Reopen("another");
  EXPECT_TRUE(found.files.empty());
  EXPECT_EQ(found.num_foreign, 1);
  EXPECT_FALSE(fs::exists(BackendOf(id)));
}

TEST_F(DiskTierTest, WhatACrashCutShortGoesAndStrangersStay) {
  ASSERT_TRUE(Open().ok());
  const uint64_t id = Write();
  tier_.reset();
  // As it is between the write and the rename.
  fs::rename(BackendOf(id), BackendOf(id) + ".tmp");
  WriteBytes(folder_ + "/notes.txt", "mine");
  WriteBytes(folder_ + "/notes.prefix", "mine");
  const PrefixDisk::Found found = Reopen();
  EXPECT_TRUE(found.files.empty());
  EXPECT_EQ(found.num_torn, 1);
  EXPECT_FALSE(fs::exists(BackendOf(id) + ".tmp"));
  EXPECT_TRUE(fs::exists(folder_ + "/notes.txt"));
  EXPECT_TRUE(fs::exists(folder_ + "/notes.prefix"));
}

TEST_F(DiskTierTest, AFullDiskIsSaidAndLeavesNothing) {
  ASSERT_TRUE(Open().ok());
  fs::create_symlink("/dev/full", BackendOf(1) + ".tmp");
  tier_->Write("salt", tokens_, Snapshot());
  EXPECT_EQ(Result().status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(fs::exists(fs::symlink_status(BackendOf(1) + ".tmp")));
  EXPECT_FALSE(fs::exists(BackendOf(1)));
  Write();
}

TEST_F(DiskTierTest, OnlyTheOwnerMayUseIt) {
  const mode_t umask_before = umask(0);
  folder_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/above/tier");
  fs::remove_all(fs::path(folder_).parent_path());
  ASSERT_TRUE(Open().ok());
  const uint64_t id = Write();
  umask(umask_before);
  const auto mode = [](const std::string& path) { return fs::status(path).permissions(); };
  EXPECT_EQ(mode(BackendOf(id)), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(mode(folder_ + "/lock"), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(mode(folder_), fs::perms::owner_all);
  EXPECT_EQ(mode(fs::path(folder_).parent_path()) & (fs::perms::group_write | fs::perms::others_write),
            fs::perms::none);
}

TEST_F(DiskTierTest, SyncSaysWhenAllIsDoneAndWhatCouldNotBeRemoved) {
  ASSERT_TRUE(Open().ok());
  const auto sync = [this] {
    std::promise<absl::Status> done;
    tier_->Sync([&done](absl::Status status) { done.set_value(std::move(status)); });
    return done.get_future().get();
  };
  const uint64_t a = Write();
  tier_->Remove(a);
  const uint64_t b = tier_->Write("salt", tokens_, Snapshot());
  EXPECT_EQ(sync(), absl::OkStatus());
  EXPECT_FALSE(fs::exists(BackendOf(a)));
  EXPECT_TRUE(fs::exists(BackendOf(b)));
  fs::remove(BackendOf(b));
  fs::create_directory(BackendOf(b));  // unlink(2) removes no folder
  tier_->Remove(b);
  const absl::Status failed = sync();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failed.message()), HasSubstr(BackendOf(b)));
  EXPECT_EQ(sync().code(), absl::StatusCode::kUnavailable) << "it is still there";
  fs::remove(BackendOf(b));
  WriteBytes(BackendOf(b), "prefix");
  EXPECT_EQ(sync(), absl::OkStatus());
  EXPECT_FALSE(fs::exists(BackendOf(b))) << "the folder can be written again";
}

TEST_F(DiskTierTest, AReadComesBeforeTheWritesThatWait) {
  ASSERT_TRUE(Open().ok());
  const uint64_t a = Write();
  absl::Notification go_on;
  tier_->Sync([&go_on](const absl::Status&) { go_on.WaitForNotification(); });
  const uint64_t b = tier_->Write("salt", tokens_, Snapshot());
  tier_->Read(a);
  go_on.Notify();
  std::vector<PrefixDisk::Result> results;
  WaitUntil(
      [&] {
        for (PrefixDisk::Result& result : tier_->TakeResults()) results.push_back(std::move(result));
        return results.size() == 2;
      },
      "both");
  EXPECT_EQ(results[0].id, a);
  EXPECT_EQ(results[1].id, b);
}

TEST_F(DiskTierTest, ASecondServerIsRefused) {
  ASSERT_TRUE(Open().ok());
  const auto second = DiskTier::Open({.folder = folder_, .identity = "model", .plan = plan_});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another server uses it"));
  EXPECT_TRUE(Open().ok()) << "the lock goes with its holder";
}

TEST_F(DiskTierTest, WhatIsAskedForIsDoneBeforeItEnds) {
  ASSERT_TRUE(Open().ok());
  for (int i = 0; i < 20; ++i) tier_->Write("salt", tokens_, Snapshot());
  EXPECT_EQ(Reopen().files.size(), 20u);
}

TEST(CacheIdentityTest, TellsCachesApart) {
  const CachePlan plan = *BuildCachePlan({StaticLayer(), SlidingLayer(6)}, 4);
  const std::string identity = CacheIdentity("f", plan, 0);
  EXPECT_EQ(identity, CacheIdentity("f", plan, 0));
  EXPECT_NE(identity, CacheIdentity("g", plan, 0)) << "another checkpoint or type of weights";
  EXPECT_NE(identity, CacheIdentity("f", plan, 8));
  EXPECT_NE(identity, CacheIdentity("f", *BuildCachePlan({StaticLayer(), SlidingLayer(6)}, 8), 0));
  EXPECT_NE(identity, CacheIdentity("f", *BuildCachePlan({StaticLayer(), SlidingLayer(7)}, 4), 0));
  EXPECT_NE(identity, CacheIdentity("f", *BuildCachePlan({SlidingLayer(6), StaticLayer()}, 4), 0));
  std::vector<LayerCacheSpec> quantised = {StaticLayer(), SlidingLayer(6)};
  QuantiseKv(DType::kInt8, 0, &quantised);
  EXPECT_NE(identity, CacheIdentity("f", *BuildCachePlan(quantised, 4), 0));
}

}  // namespace
}  // namespace berth
