#include "server/storage/session_store.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "server/storage/session_file.h"
#include "server/storage/session_id.h"
#include "tests/server/storage/session_store_test.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(SessionStoreTest, EverythingComesBackAfterARestart) {
  Open();
  Write("s");
  Open();
  auto loaded = Load("s");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Progress wanted = SomeProgress();
  v1::SessionFile file = Header("s");
  SetProgress(wanted, &file);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(loaded->file, file));
  const Progress progress = ReadProgress(loaded->file);
  EXPECT_EQ(progress.tokens, wanted.tokens);
  ASSERT_EQ(progress.logprobs.size(), 2u);
  EXPECT_EQ(progress.logprobs[1].logprob, -0.5f);
  EXPECT_EQ(progress.logprobs[1].top[0].token, 20);
  EXPECT_EQ(progress.logprobs[1].top[0].logprob, -0.25f);
  EXPECT_EQ(progress.finish, FinishReason::kNone);
  EXPECT_EQ(progress.stop_token, -1);
  const CacheSnapshot& snapshot = loaded->snapshot;
  EXPECT_EQ(snapshot.num_tokens, 4);
  EXPECT_EQ(snapshot.num_cross_tokens, 2);
  EXPECT_EQ(snapshot.groups, wanted.snapshot.groups);
  ASSERT_EQ(snapshot.size_bytes, 128);
  EXPECT_EQ(std::memcmp(snapshot.bytes.get(), wanted.snapshot.bytes.get(), 128), 0);
}

TEST_F(SessionStoreTest, ASlowDiskGetsTheNewestSaveOfEachSession) {
  Open();
  for (RequestKey key : {1, 2, 3}) {
    v1::SessionFile header = Header(std::to_string(key));
    header.mutable_request()->set_deliver_saved_only(true);
    ASSERT_TRUE(store_->Begin(key, std::move(header)).ok());
  }
  Stall();
  for (int64_t i = 1; i <= 50; ++i) {
    for (RequestKey key : {1, 2, 3}) store_->Take({.key = key, .progress = SomeProgress(i)});
  }
  store_->Take({.key = 2, .progress = SomeProgress(60), .last = true});
  store_->Take({.key = 3, .last = true});  // it failed: what was saved before stands
  Resume();
  EXPECT_EQ(store_->stats().num_saves, 3);
  ASSERT_EQ(events_.size(), 3u);
  const int64_t num_tokens[] = {50, 60, 50};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(events_[i].key, i + 1);
    EXPECT_EQ(events_[i].num_tokens, num_tokens[i]);
    EXPECT_EQ(events_[i].last, i > 0);
  }
  EXPECT_FALSE(Load("1").ok()) << "it runs";
  EXPECT_EQ(Load("2")->file.output_size(), 60);
  EXPECT_EQ(Load("3")->file.output_size(), 50);
  store_->Take({.key = 1, .progress = SomeProgress(51), .last = true});
  WaitUntilWritten();
  EXPECT_EQ(Load("1")->file.output_size(), 51);
}

TEST_F(SessionStoreTest, TokensThatWaitForTheDiskCountAsMemory) {
  Open(1 << 20, "model", /*max_pending_bytes=*/4000);
  ASSERT_TRUE(Begin(1, "1").ok());
  ASSERT_TRUE(Begin(2, "2").ok());
  Stall();
  const auto take = [this](RequestKey key, int64_t num_tokens, int64_t num_logprobs, bool last) {
    Progress progress;
    progress.tokens.resize(num_tokens);
    progress.logprobs.resize(num_logprobs, {.top = std::vector<TokenLogprob>(20)});
    store_->Take({.key = key, .progress = std::move(progress), .last = last});
  };
  EXPECT_TRUE(store_->ready());
  take(1, 900, 0, false);
  EXPECT_TRUE(store_->ready());
  take(1, 999, 0, false);
  EXPECT_TRUE(store_->ready()) << "it replaces the one before";
  take(2, 1, 0, false);
  EXPECT_FALSE(store_->ready());
  take(1, 1, 1, true);
  EXPECT_TRUE(store_->ready());
  take(2, 25, 25, true);
  EXPECT_FALSE(store_->ready()) << "logprobs take memory too";
  Resume();
  EXPECT_TRUE(store_->ready());
}

TEST_F(SessionStoreTest, ATornFileIsRefusedWhereverItIsCutOrChanged) {
  Open();
  Write("s");
  const std::string whole = ReadFile(BackendOf("s"));
  for (size_t length = 0; length < whole.size(); length += 7) {
    WriteFile(BackendOf("s"), whole.substr(0, length));
    EXPECT_EQ(Load("s").status().code(), absl::StatusCode::kDataLoss) << length;
    EXPECT_EQ(fs::file_size(BackendOf("s")), length) << "a refused file was touched";
  }
  for (size_t i = 0; i < whole.size(); i += 3) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    WriteFile(BackendOf("s"), changed);
    EXPECT_FALSE(Load("s").ok()) << "byte " << i;
  }
  // Its name says whose it is. Its tenant sees it, and a new request takes its place.
  WriteFile(BackendOf("s"), whole.substr(0, 50));
  Open();
  EXPECT_EQ(Load("s").status().code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(List("tenant").size(), 1u);
  EXPECT_TRUE(List("tenant")[0].damaged());
  EXPECT_TRUE(List("anyone").empty());
  EXPECT_EQ(store_->stats().used_bytes, 50);
  Write("s");
  EXPECT_TRUE(Load("s").ok());
  EXPECT_FALSE(List("tenant")[0].damaged());
  EXPECT_TRUE(List("anyone").empty());
  EXPECT_EQ(store_->stats().used_bytes, static_cast<int64_t>(whole.size()));
  // Where only the cache is torn, its owner is known, and learns of it by resuming it.
  WriteFile(BackendOf("s"), whole.substr(0, whole.size() - 20) + std::string(20, 'x'));
  Open();
  EXPECT_EQ(Load("s").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(List("tenant")[0].damaged());
  EXPECT_TRUE(List("anyone").empty());
  EXPECT_TRUE(Delete("s").ok());
  EXPECT_FALSE(fs::exists(BackendOf("s")));
}

TEST_F(SessionStoreTest, RefusesOtherVersionsModelsAndTenants) {
  Open();
  Write("s");
  EXPECT_EQ(Load("other").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Load("s", "thief").status(), Load("s", "nobody").status());
  EXPECT_EQ(Load("s", "thief").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Delete("s", "thief"), Load("s", "nobody").status());
  ASSERT_TRUE(Begin(2, "s", "thief").ok());  // an id of its own
  store_->Withdraw(2);
  EXPECT_TRUE(List("thief").empty());
  EXPECT_EQ(List("tenant").size(), 1u);
  Open(1 << 20, "another model");
  const absl::Status model = Load("s").status();
  EXPECT_EQ(model.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(model.message()), HasSubstr("another model"));
  std::string newer = ReadFile(BackendOf("s"));
  newer[8] = 9;
  WriteFile(BackendOf("s"), newer);
  const absl::Status version = Load("s").status();
  EXPECT_EQ(version.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(version.message()), HasSubstr("version 9"));
  EXPECT_THAT(std::string(version.message()), Not(HasSubstr(folder_)));
  Open();  // it reads the header
  EXPECT_EQ(Begin(3, "s"), version);
  EXPECT_EQ(Delete("s"), version);
}

TEST_F(SessionStoreTest, OneUnderWayIsNobodyElses) {
  Open();
  ASSERT_TRUE(Begin(1, "s").ok());
  EXPECT_EQ(Begin(2, "s").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Load("s").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Delete("s").code(), absl::StatusCode::kFailedPrecondition);
  store_->Withdraw(1);
  EXPECT_TRUE(Begin(2, "s").ok());
  store_->Take({.key = 2, .last = true});
  EXPECT_EQ(Load("s").status().code(), absl::StatusCode::kNotFound) << "a failed request leaves nothing";
}

TEST_F(SessionStoreTest, AnotherMayBeginBeforeTheLastSaveOfOneThatEnded) {
  Open();
  ASSERT_TRUE(Begin(1, "s").ok());
  Stall();
  store_->OnEnded(1);
  ASSERT_TRUE(Begin(2, "s").ok());
  store_->Withdraw(2);
  ASSERT_TRUE(Begin(2, "s").ok());
  EXPECT_EQ(Begin(3, "s").code(), absl::StatusCode::kFailedPrecondition);
  store_->Take({.key = 1, .progress = SomeProgress(7), .last = true});
  Resume();
  EXPECT_EQ(store_->stats().num_saves, 1);
  EXPECT_EQ(Begin(3, "s").code(), absl::StatusCode::kFailedPrecondition) << "the second still runs";
  EXPECT_FALSE(Load("s").ok());
  store_->Take({.key = 2, .progress = SomeProgress(9), .last = true});
  WaitUntilWritten();
  EXPECT_EQ(Load("s")->file.output_size(), 9);
}

TEST_F(SessionStoreTest, OneThatIsWithdrawnLeavesTheOneBeforeItAlive) {
  Open();
  ASSERT_TRUE(Begin(1, "s").ok());
  store_->OnEnded(1);
  ASSERT_TRUE(Begin(2, "s").ok());
  store_->Withdraw(2);
  EXPECT_FALSE(Load("s").ok());
  EXPECT_EQ(Delete("s").code(), absl::StatusCode::kFailedPrecondition) << "its last save is still to come";
  store_->Take({.key = 1, .progress = SomeProgress(7), .last = true});
  WaitUntilWritten();
  EXPECT_EQ(Load("s")->file.output_size(), 7);
  EXPECT_TRUE(Delete("s").ok());
}

TEST_F(SessionStoreTest, SaveAnswersWhenTheFileIsThere) {
  Open();
  ASSERT_TRUE(Begin(1, "s").ok());
  std::promise<absl::StatusOr<v1::Session>> promise;
  RequestKey asked = 0;
  store_->Save(
      "s", "tenant", [&](RequestKey key) { asked = key; },
      [&](absl::StatusOr<v1::Session> session) { promise.set_value(std::move(session)); });
  EXPECT_EQ(asked, 1u);
  store_->Take({.key = 1, .progress = SomeProgress()});
  const absl::StatusOr<v1::Session> session = promise.get_future().get();
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->output_tokens(), 2);
  EXPECT_TRUE(session->running());
  EXPECT_EQ(session->size_bytes(), static_cast<int64_t>(fs::file_size(BackendOf("s"))));
  // Ended without another save: whoever waits for one hears of it.
  std::promise<absl::StatusOr<v1::Session>> late;
  store_->Save(
      "s", "tenant", [](RequestKey) {}, [&](absl::StatusOr<v1::Session> s) { late.set_value(std::move(s)); });
  store_->Take({.key = 1, .last = true});
  EXPECT_EQ(late.get_future().get().status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Load("s").ok());
}

TEST_F(SessionStoreTest, ASaveIsNotAnsweredByAnOlderOne) {
  Open();
  ASSERT_TRUE(Begin(1, "s").ok());
  Stall();
  store_->Take({.key = 1, .progress = SomeProgress(2)});
  std::vector<int64_t> answers;
  const auto save = [&] {
    store_->Save(
        "s", "tenant", [](RequestKey) {},
        [&](absl::StatusOr<v1::Session> session) { answers.push_back(session.ok() ? session->output_tokens() : -1); });
  };
  save();
  Resume();
  EXPECT_THAT(answers, IsEmpty()) << "the save of 2 tokens was handed over before";
  store_->Take({.key = 1, .progress = SomeProgress(5)});
  WaitUntilWritten();
  EXPECT_THAT(answers, ElementsAre(5));
  save();
  store_->Take({.key = 1, .last = true});
  WaitUntilWritten();
  EXPECT_THAT(answers, ElementsAre(5, -1)) << "it ended without a save";
}

TEST_F(SessionStoreTest, AFolderThatGoesIsUnavailable) {
  Open();
  ASSERT_TRUE(Begin(1, "s").ok());
  fs::remove_all(folder_);
  std::promise<absl::StatusOr<v1::Session>> promise;
  store_->Save(
      "s", "tenant", [](RequestKey) {},
      [&](absl::StatusOr<v1::Session> session) { promise.set_value(std::move(session)); });
  store_->Take({.key = 1, .progress = SomeProgress(), .last = true});
  EXPECT_EQ(promise.get_future().get().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionStoreTest, TheLimitHoldsAndTheOldFileStays) {
  Open();
  Write("s");
  const int64_t size = store_->stats().used_bytes;
  EXPECT_EQ(size, static_cast<int64_t>(fs::file_size(BackendOf("s"))));
  Open(2 * size + 8);
  Write("s", FinishReason::kLength);  // both are there for a moment
  EXPECT_EQ(store_->stats().num_saves, 1);
  Write("t");
  EXPECT_LE(store_->stats().used_bytes, 2 * size + 8);
  Write("s", FinishReason::kNone, 40);
  EXPECT_EQ(store_->stats().num_failed_saves, 1);
  EXPECT_EQ(ReadProgress(Load("s")->file).finish, FinishReason::kLength);
  EXPECT_FALSE(fs::exists(BackendOf("s") + ".tmp"));
  ASSERT_TRUE(Delete("s").ok());
  ASSERT_TRUE(Delete("t").ok());
  EXPECT_EQ(store_->stats().used_bytes, 0);
  fs::remove(folder_ + "/lock");  // the store's own
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SessionStoreTest, AFullDiskIsSaidClearly) {
  fs::create_directories(folder_);
  const std::string link = folder_ + "/full";  // goes with the failure; the device itself must not
  fs::create_symlink("/dev/full", link);
  const absl::Status status = WriteSessionFile(link, v1::SessionFile(), SomeProgress().snapshot);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("No space left on device"));
  EXPECT_FALSE(fs::exists(fs::symlink_status(link)));
}

TEST_F(SessionStoreTest, LeftoversOfACrashGoAndStrangersStay) {
  fs::create_directories(folder_);
  WriteFile(folder_ + "/s.session.tmp", "half");
  WriteFile(folder_ + "/notes.txt", "mine");
  Open();
  EXPECT_FALSE(fs::exists(folder_ + "/s.session.tmp"));
  EXPECT_TRUE(fs::exists(folder_ + "/notes.txt"));
  EXPECT_EQ(store_->stats().used_bytes, 0);
}

TEST_F(SessionStoreTest, TenantsHaveIdsOfTheirOwn) {
  Open();
  Write("s", FinishReason::kNone, 2, "alice");
  Write("s", FinishReason::kLength, 3, "bob");
  ASSERT_TRUE(Begin(5, "t", "alice").ok());
  EXPECT_EQ(Load("t", "bob").status().code(), absl::StatusCode::kNotFound);  // running or not, it is alice's
  ASSERT_TRUE(Begin(6, "t", "bob").ok());
  Open();
  EXPECT_EQ(Load("s", "alice")->file.output_size(), 2);
  EXPECT_EQ(Load("s", "bob")->file.output_size(), 3);
  ASSERT_TRUE(Delete("s", "bob").ok());
  EXPECT_TRUE(Load("s", "alice").ok());
}

TEST_F(SessionStoreTest, AFileOfTheFormerLayoutIsReadAndRenamedByItsNextSave) {
  Open();
  Write("s");
  const std::string former = folder_ + "/s.session";
  fs::rename(BackendOf("s"), former);
  WriteFile(folder_ + "/torn.session", "half");
  Open();
  EXPECT_TRUE(Load("s").ok());
  EXPECT_EQ(Ids("tenant"), std::vector<std::string>({"s"}));
  EXPECT_TRUE(List("anyone").empty());
  EXPECT_EQ(Load("s", "anyone").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Load("torn").status().code(), absl::StatusCode::kNotFound);  // its tenant is unknown
  Write("torn");
  EXPECT_TRUE(Load("torn").ok());
  const std::string old = ReadFile(former);
  Write("s", FinishReason::kLength);
  EXPECT_FALSE(fs::exists(former));
  EXPECT_TRUE(fs::exists(BackendOf("s")));
  // A crash before the old file was removed leaves both.
  WriteFile(former, old);
  Open();
  EXPECT_EQ(ReadProgress(Load("s")->file).finish, FinishReason::kLength);
  EXPECT_FALSE(fs::exists(former));
}

TEST_F(SessionStoreTest, AFileWithAnothersNameIsRefused) {
  Open();
  Write("s", FinishReason::kNone, 2, "alice");
  fs::copy_file(BackendOf("s", "alice"), BackendOf("s", "bob"));
  Open();
  EXPECT_EQ(Load("s", "bob").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Load("s", "alice").ok());
}

TEST_F(SessionStoreTest, OnlyTheOwnerCanReadTheFiles) {
  const mode_t umask_before = umask(0);
  Open();
  Write("s");
  umask(umask_before);
  const auto mode = [](const std::string& path) { return fs::status(path).permissions(); };
  EXPECT_EQ(mode(BackendOf("s")), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(mode(folder_), fs::perms::owner_all);
}

TEST_F(SessionStoreTest, ASecondServerIsRefused) {
  Open();
  const auto second = SessionStore::Open({.folder = folder_, .limit_bytes = 1 << 20, .model = "model"});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another server uses it"));
  store_.reset();
  Open();
}

TEST_F(SessionStoreTest, AFifoInPlaceOfAFileHoldsNobodyUp) {
  Open();
  ASSERT_EQ(mkfifo(BackendOf("fifo").c_str(), 0600), 0);
  Open();  // a scan that opened it would wait for its writer
  EXPECT_EQ(ReadSessionFile(BackendOf("fifo"), /*with_snapshot=*/false).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace berth
