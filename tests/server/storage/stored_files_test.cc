// Reads files that this release and the one before wrote, from the folder `files`. A change of a format fails here.
//
// A new version's files are written with
//   BERTH_STORED_FILES=FOLDER bazel-bin/tests/server/storage/stored_files_test
// Add them under a name with the version, and keep those of the version before as long as it is read.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/storage/prefix_file.h"
#include "server/storage/session_file.h"
#include "server/storage/session_store.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::string Stored(const std::string& name) { return "tests/server/storage/files/" + name; }

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// Where new files go.
std::string Written(const std::string& name) {
  const char* const folder = std::getenv("BERTH_STORED_FILES");
  return absl::StrCat(folder != nullptr ? folder : testing::TempDir(), "/", name);
}

// The file with another version in its beginning.
std::string WithVersion(const std::string& path, uint32_t version) {
  std::string bytes = ReadBytes(path);
  std::memcpy(bytes.data() + 8, &version, sizeof(version));
  const std::string copy = Written("other-version");
  std::ofstream(copy, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return copy;
}

CacheSnapshot Fill(CacheSnapshot snapshot) {
  snapshot.bytes = std::make_unique<std::byte[]>(static_cast<size_t>(snapshot.size_bytes));
  for (int64_t i = 0; i < snapshot.size_bytes; ++i) snapshot.bytes[i] = static_cast<std::byte>(i * 7);
  return snapshot;
}

Progress SomeProgress() {
  Progress progress;
  progress.tokens = {20, 21};
  progress.logprobs = {{.logprob = -0.5f, .top = {{.token = 20, .logprob = -0.25f}}}, {.logprob = -1.5f, .top = {}}};
  progress.finish = FinishReason::kStop;
  progress.stop_token = 21;
  CacheSnapshot snapshot;
  snapshot.num_tokens = 4;
  snapshot.num_cross_tokens = 2;
  snapshot.groups = {{.expired_blocks = 1, .num_units = 2, .unit_bytes = 64},
                     {.expired_blocks = 0, .num_units = 1, .unit_bytes = 32}};
  snapshot.size_bytes = 160;
  progress.snapshot = Fill(std::move(snapshot));
  return progress;
}

v1::SessionFile SomeSession() {
  v1::SessionFile file;
  file.set_model("0123456789abcdef0123456789abcdef");
  v1::GenerateRequest& request = *file.mutable_request();
  request.set_session_id("stored");
  request.set_cache_salt("tenant");
  for (int32_t token : {1, 2, 3}) request.mutable_token_ids()->add_ids(token);
  request.mutable_sampling()->set_temperature(0.5);
  request.mutable_sampling()->set_seed(7);
  request.mutable_stopping()->set_max_tokens(40);
  request.mutable_stopping()->add_stop("end");
  request.mutable_structure()->set_regex("a+");
  request.set_logprobs(1);
  request.set_autosave_tokens(8);
  file.add_stop_token_ids(11);
  file.add_forced_first(12);
  file.add_forced_last(13);
  file.add_text_context(3);
  SetProgress(SomeProgress(), &file);
  return file;
}

TEST(StoredFiles, SessionsOfVersion3AreRead) {
  const absl::StatusOr<SessionFileContent> read = ReadSessionFile(Stored("session-v3"), /*with_snapshot=*/true);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(read->file, SomeSession()))
      << read->file.DebugString();
  const Progress progress = ReadProgress(read->file);
  EXPECT_EQ(progress.tokens, SomeProgress().tokens);
  EXPECT_EQ(progress.finish, FinishReason::kStop);
  const CacheSnapshot wanted = SomeProgress().snapshot;
  EXPECT_EQ(read->snapshot.num_tokens, 4);
  EXPECT_EQ(read->snapshot.num_cross_tokens, 2);
  ASSERT_EQ(read->snapshot.size_bytes, wanted.size_bytes);
  EXPECT_EQ(std::memcmp(read->snapshot.bytes.get(), wanted.bytes.get(), 160), 0);
}

TEST(StoredFiles, SessionsAreWrittenAsVersion3) {
  ASSERT_TRUE(WriteSessionFile(Written("session-v3"), SomeSession(), SomeProgress().snapshot).ok());
  EXPECT_EQ(ReadBytes(Written("session-v3")), ReadBytes(Stored("session-v3")))
      << "the format has changed: raise its version";
}

// A copy of a stored folder of sessions, which a store may change.
std::string CopyOf(const std::string& name) {
  const std::string folder = Written(name + "-copy");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const auto& file : std::filesystem::directory_iterator(Stored(name))) {
    std::filesystem::copy_file(file.path(), folder + "/" + file.path().filename().string());
  }
  return folder;
}

// The files of sessions-1 have no tenant in their names.
TEST(StoredFiles, FoldersOfSessionsOfBothLayoutsAreRead) {
  for (const std::string name : {"sessions-1", "sessions-2"}) {
    const std::string folder = CopyOf(name);
    auto store =
        SessionStore::Open({.folder = folder, .limit_bytes = 1 << 20, .model = "0123456789abcdef0123456789abcdef"});
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE((*store)->List("other")->empty());
    ASSERT_EQ((*store)->List("tenant")->size(), 1u) << name;
    EXPECT_EQ((*store)->List("tenant")->at(0).session_id(), "stored");
    std::promise<absl::StatusOr<SessionFileContent>> loaded;
    (*store)->Load("stored", "tenant",
                   [&](absl::StatusOr<SessionFileContent> content) { loaded.set_value(std::move(content)); });
    const absl::StatusOr<SessionFileContent> content = loaded.get_future().get();
    ASSERT_TRUE(content.ok()) << content.status();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(content->file, SomeSession()));

    ASSERT_TRUE((*store)->Begin(1, SomeSession()).ok());
    (*store)->Take({.key = 1, .progress = SomeProgress(), .last = true});
    store->reset();  // writes it
    std::vector<std::string> files;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      files.push_back(file.path().filename().string());
    }
    EXPECT_THAT(files, UnorderedElementsAre("lock", "stored@e9da86d351cf9a7642d8c50195c3f466.session")) << name;
  }
}

CachePlan SomePlan() { return *BuildCachePlan({StaticLayer(), SlidingLayer(6), RecurrentLayer()}, 4); }
const std::vector<int32_t> kTokens = {5, 6, 7, 8, 9, 10};

TEST(StoredFiles, PrefixesOfVersion2AreRead) {
  CacheSnapshot snapshot;
  const absl::StatusOr<PrefixFile> read = ReadPrefixFile(Stored("prefix-v2"), SomePlan(), &snapshot);
  ASSERT_TRUE(read.ok()) << read.status();
  // Another identity: files of the release before are not used.
  EXPECT_EQ(read->identity, CacheIdentity("0123456789abcdef", SomePlan(), 256));
  EXPECT_EQ(read->salt, "tenant");
  EXPECT_EQ(read->tokens, kTokens);
  const CacheSnapshot wanted = Fill(PrefixLayout(SomePlan(), 6));
  ASSERT_EQ(snapshot.size_bytes, wanted.size_bytes);
  EXPECT_EQ(std::memcmp(snapshot.bytes.get(), wanted.bytes.get(), static_cast<size_t>(wanted.size_bytes)), 0);
}

TEST(StoredFiles, PrefixesAreWrittenAsVersion2) {
  ASSERT_TRUE(WritePrefixFile(Written("prefix-v2"), CacheIdentity("0123456789abcdef", SomePlan(), 256), "tenant",
                              kTokens, Fill(PrefixLayout(SomePlan(), 6)))
                  .ok());
  EXPECT_EQ(ReadBytes(Written("prefix-v2")), ReadBytes(Stored("prefix-v2")))
      << "the format has changed: raise its version";
}

TEST(StoredFiles, OtherVersionsAreRefusedByName) {
  for (const uint32_t version : {1u, 9u}) {
    const std::string which = version == 9 ? "; a newer release wrote it" : "; an older release wrote it";
    const absl::Status session = ReadSessionFile(WithVersion(Stored("session-v3"), version), false).status();
    EXPECT_EQ(session.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(session.message()),
                HasSubstr(absl::StrCat("has format version ", version, "; this server reads versions 3 to 3", which)));
    const absl::Status prefix = ReadPrefixFile(WithVersion(Stored("prefix-v2"), version), SomePlan(), nullptr).status();
    EXPECT_EQ(prefix.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(prefix.message()),
                HasSubstr(absl::StrCat("has format version ", version, "; this server reads versions 2 to 2", which)));
  }
}

}  // namespace
}  // namespace berth
