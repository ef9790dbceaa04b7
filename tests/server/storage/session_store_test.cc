#include "server/storage/session_store.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "server/storage/session_file.h"
#include "server/storage/session_id.h"

namespace berth {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}
void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

Progress SomeProgress(int64_t num_tokens = 2) {
  Progress progress;
  for (int64_t i = 0; i < num_tokens; ++i) {
    progress.tokens.push_back(static_cast<int32_t>(20 + i));
    progress.logprobs.push_back({.logprob = -0.5f, .top = {{.token = 20, .logprob = -0.25f}}});
  }
  progress.snapshot.num_tokens = 4;
  progress.snapshot.num_cross_tokens = 2;
  progress.snapshot.groups = {{.expired_blocks = 1, .num_units = 2, .unit_bytes = 64}};
  progress.snapshot.size_bytes = 128;
  progress.snapshot.bytes = std::make_unique<std::byte[]>(128);
  for (int i = 0; i < 128; ++i) progress.snapshot.bytes[i] = static_cast<std::byte>(i);
  return progress;
}

class SessionStoreTest : public ::testing::Test {
 protected:
  SessionStoreTest() : folder_(std::string(std::getenv("TEST_TMPDIR")) + "/sessions") { fs::remove_all(folder_); }

  void Open(int64_t limit_bytes = 1 << 20, const std::string& model = "model") {
    store_.reset();
    auto store = SessionStore::Open({.folder = folder_, .limit_bytes = limit_bytes, .model = model});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  std::string BackendOf(const std::string& id) const { return folder_ + "/" + id + ".session"; }

  absl::Status Begin(RequestKey key, const std::string& id, const std::string& tenant = "tenant") {
    return store_->Begin(key, Header(id, tenant));
  }
  v1::SessionFile Header(const std::string& id, const std::string& tenant = "tenant") const {
    v1::SessionFile file;
    file.set_model(store_->model());
    file.mutable_request()->set_session_id(id);
    file.mutable_request()->set_cache_salt(tenant);
    file.mutable_request()->mutable_token_ids()->add_ids(4);
    file.add_stop_token_ids(11);
    file.set_stop_token(-1);
    return file;
  }
  // A request that ran to its end, or was cut short, under the id.
  void Write(const std::string& id, FinishReason finish = FinishReason::kNone, int64_t num_tokens = 2) {
    ASSERT_TRUE(Begin(1, id).ok());
    SavedRequest saved = {.key = 1, .progress = SomeProgress(num_tokens), .last = true};
    saved.progress->finish = finish;
    store_->Take(std::move(saved));
    WaitUntilWritten();
  }
  void WaitUntilWritten() { (void)Load("nobody"); }  // the thread's queue has been worked off by then

  absl::StatusOr<SessionFileContent> Load(const std::string& id, const std::string& tenant = "tenant") {
    std::promise<absl::StatusOr<SessionFileContent>> promise;
    store_->Load(id, tenant, [&](absl::StatusOr<SessionFileContent> loaded) { promise.set_value(std::move(loaded)); });
    return promise.get_future().get();
  }
  absl::Status Delete(const std::string& id, const std::string& tenant = "tenant") {
    std::promise<absl::Status> promise;
    store_->Delete(id, tenant, [&](const absl::Status& status) { promise.set_value(status); });
    return promise.get_future().get();
  }

  const std::string folder_;
  std::unique_ptr<SessionStore> store_;
};

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
  // The owner of a damaged file that is found at the start is unknown. So all tenants see it, and a new request takes
  // its place.
  WriteFile(BackendOf("s"), whole.substr(0, 50));
  Open();
  EXPECT_EQ(Load("s").status().code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(store_->List("anyone").size(), 1u);
  EXPECT_TRUE(store_->List("anyone")[0].damaged());
  EXPECT_EQ(store_->stats().used_bytes, 50);
  Write("s");
  EXPECT_TRUE(Load("s").ok());
  EXPECT_FALSE(store_->List("tenant")[0].damaged());
  EXPECT_TRUE(store_->List("anyone").empty());
  EXPECT_EQ(store_->stats().used_bytes, static_cast<int64_t>(whole.size()));
  // Where only the cache is torn, its owner is known, and learns of it by resuming it.
  WriteFile(BackendOf("s"), whole.substr(0, whole.size() - 20) + std::string(20, 'x'));
  Open();
  EXPECT_EQ(Load("s").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(store_->List("tenant")[0].damaged());
  EXPECT_TRUE(store_->List("anyone").empty());
  EXPECT_EQ(Begin(1, "s", "anyone").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Delete("s").ok());
  EXPECT_FALSE(fs::exists(BackendOf("s")));
}

TEST_F(SessionStoreTest, RefusesOtherVersionsModelsAndTenants) {
  Open();
  Write("s");
  EXPECT_EQ(Load("other").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Load("s", "thief").status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Delete("s", "thief").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Begin(2, "s", "thief").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(store_->List("thief").empty());
  EXPECT_EQ(store_->List("tenant").size(), 1u);
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
  EXPECT_FALSE(fs::exists(folder_ + "/s.session.tmp"));
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

TEST(SessionIdTest, IsAFilesNameAndNoPath) {
  for (const char* id : {"a", "A-b_c.9", "0"}) EXPECT_TRUE(CheckSessionId("id", id).ok()) << id;
  EXPECT_TRUE(CheckSessionId("id", std::string(128, 'x')).ok());
  for (const std::string& id : {std::string(), std::string(129, 'x'), std::string("."), std::string(".."),
                                std::string("../x"), std::string("a/b"), std::string("a\0b", 3), std::string("a b"),
                                std::string(".hidden"), std::string("\xC3\xA4")}) {
    EXPECT_EQ(CheckSessionId("id", id).code(), absl::StatusCode::kInvalidArgument) << id;
  }
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
