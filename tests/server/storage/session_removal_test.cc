// How sessions go: for the room of others, because they are too old, and with their tenant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "tests/server/storage/session_store_test.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

TEST_F(SessionStoreTest, TheOldestMakeRoomWithinTheTenantsBytes) {
  Open();
  Write("size");
  const int64_t size = store_->stats().used_bytes;
  ASSERT_TRUE(Delete("size").ok());
  quotas_["tenant"].bytes = 3 * size + 3 * 8;  // an id may differ in length
  Write("others", FinishReason::kNone, 2, "other");
  for (const char* id : {"a", "b", "c"}) {
    Write(id);
    now_ += absl::Seconds(1);
  }
  Write("a");  // again: it replaces its own file, and is now the youngest
  EXPECT_EQ(Ids("tenant"), std::vector<std::string>({"a", "b", "c"}));
  now_ += absl::Seconds(1);
  Write("d");
  EXPECT_EQ(Ids("tenant"), std::vector<std::string>({"a", "c", "d"}));
  EXPECT_FALSE(fs::exists(BackendOf("b")));
  EXPECT_EQ(Ids("other"), std::vector<std::string>({"others"}));

  // A running one stays. What is over the quota even so is refused, and nothing is deleted for it.
  ASSERT_TRUE(Begin(7, "a").ok());
  ASSERT_TRUE(Begin(8, "e").ok());
  std::promise<absl::StatusOr<v1::Session>> saved;
  store_->Save(
      "e", "tenant", [](RequestKey) {}, [&](absl::StatusOr<v1::Session> s) { saved.set_value(std::move(s)); });
  store_->Take({.key = 8, .progress = SomeProgress(2000), .last = true});
  const absl::Status refused = saved.get_future().get().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("exceeds session_bytes=" + std::to_string(3 * size + 3 * 8) + " of its tenant"));
  EXPECT_EQ(Ids("tenant"), std::vector<std::string>({"a", "c", "d"}));
}

TEST_F(SessionStoreTest, OldSessionsGo) {
  quotas_["tenant"].age = absl::Hours(1);
  Open();
  Write("old");
  Write("others", FinishReason::kNone, 2, "other");
  now_ += absl::Minutes(40);
  Write("young");
  now_ += absl::Minutes(21);
  EXPECT_EQ(Load("old").status().code(), absl::StatusCode::kNotFound);  // at once
  EXPECT_EQ(Ids("tenant"), std::vector<std::string>({"young"}));
  store_->Tick();
  WaitUntilWritten();
  EXPECT_FALSE(fs::exists(BackendOf("old")));
  EXPECT_TRUE(fs::exists(BackendOf("young")));
  EXPECT_TRUE(fs::exists(BackendOf("others", "other")));
  EXPECT_EQ(store_->stats().used_bytes,
            static_cast<int64_t>(fs::file_size(BackendOf("young")) + fs::file_size(BackendOf("others", "other"))));
  // By the files' times after a restart, too.
  fs::last_write_time(BackendOf("young"), fs::file_time_type::clock::now() - std::chrono::hours(2));
  now_ = absl::Now();
  Open();
  EXPECT_TRUE(Ids("tenant").empty());
}

TEST_F(SessionStoreTest, EraseDeletesAllOfOneTenant) {
  Open();
  Write("a");
  Write("b");
  const int64_t bytes = store_->stats().used_bytes;
  Write("c", FinishReason::kNone, 2, "other");
  WriteFile(BackendOf("torn"), "half");
  Open();
  ASSERT_TRUE(Begin(1, "a").ok());
  EXPECT_EQ(Erase("tenant").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ids("tenant"), std::vector<std::string>({"a"}));
  store_->Withdraw(1);
  const absl::StatusOr<SessionStore::Erased> erased = Erase("tenant");
  ASSERT_TRUE(erased.ok()) << erased.status();
  EXPECT_EQ(erased->num_sessions, 1);
  EXPECT_EQ(erased->bytes, bytes / 2);
  EXPECT_EQ(Ids("other"), std::vector<std::string>({"c"}));
  for (const auto& file : fs::directory_iterator(folder_)) {
    EXPECT_EQ(file.path().string().find(TenantHash("tenant")), std::string::npos) << file.path();
  }
}

// A save that is refused costs no other session. Neither does one that fails, if the folder had room for both files.
TEST_F(SessionStoreTest, ASaveThatFailsDeletesNothing) {
  const auto size_of = [&](int64_t num_tokens) {
    Write("p", FinishReason::kNone, num_tokens, "probe");
    const int64_t bytes = store_->stats().used_bytes;
    EXPECT_TRUE(Delete("p", "probe").ok());
    return bytes;
  };
  const auto save = [&](const std::string& id, int64_t num_tokens) {
    EXPECT_TRUE(Begin(1, id).ok());
    std::promise<absl::StatusOr<v1::Session>> saved;
    store_->Save(
        id, "tenant", [](RequestKey) {}, [&](absl::StatusOr<v1::Session> s) { saved.set_value(std::move(s)); });
    store_->Take({.key = 1, .progress = SomeProgress(num_tokens), .last = true});
    return saved.get_future().get().status();
  };
  Open();
  const int64_t small = size_of(2), large = size_of(40);
  Write("a");
  Write("o", FinishReason::kNone, 2, "other");

  // "a" has to go for "b", but even without it the folder lacks one byte.
  const int64_t least_limit = store_->stats().used_bytes - small + large;
  quotas_["tenant"].bytes = large + 16;
  Open(least_limit - 1);
  EXPECT_EQ(save("b", 40).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Ids("tenant"), std::vector<std::string>({"a"}));
  EXPECT_TRUE(fs::exists(BackendOf("a")));

  // The write fails.
  Open();
  fs::create_directory(BackendOf("b") + ".tmp");
  EXPECT_FALSE(save("b", 40).ok());
  EXPECT_EQ(Ids("tenant"), std::vector<std::string>({"a"}));

  fs::remove(BackendOf("b") + ".tmp");
  Open(least_limit);  // there is no room for both, so "a" goes first
  EXPECT_TRUE(save("b", 40).ok());
  EXPECT_EQ(Ids("tenant"), std::vector<std::string>({"b"}));
  EXPECT_FALSE(fs::exists(BackendOf("a")));
  EXPECT_EQ(store_->stats().used_bytes, least_limit);
}

TEST_F(SessionStoreTest, ASaveThatWasAskedForTooEarlyIsKnown) {
  Open();
  ASSERT_TRUE(Begin(1, "s").ok());
  EXPECT_FALSE(store_->IsAwaited(1));
  std::promise<absl::StatusOr<v1::Session>> saved;
  store_->Save(
      "s", "tenant", [](RequestKey) {}, [&](absl::StatusOr<v1::Session> s) { saved.set_value(std::move(s)); });
  EXPECT_TRUE(store_->IsAwaited(1));
  EXPECT_FALSE(store_->IsAwaited(2));
  store_->Take({.key = 1, .progress = SomeProgress(), .last = true});
  EXPECT_TRUE(saved.get_future().get().ok());
  EXPECT_FALSE(store_->IsAwaited(1));
}

}  // namespace
}  // namespace berth
