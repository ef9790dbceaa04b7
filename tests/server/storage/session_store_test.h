// A store of sessions in a folder of the test, and calls that wait for its thread.
#ifndef BERTH_TESTS_SERVER_STORAGE_SESSION_STORE_TEST_H_
#define BERTH_TESTS_SERVER_STORAGE_SESSION_STORE_TEST_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/storage/session_file.h"
#include "server/storage/session_id.h"
#include "server/storage/session_store.h"

namespace berth {

namespace fs = std::filesystem;

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}
inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline Progress SomeProgress(int64_t num_tokens = 2) {
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

  void Open(int64_t limit_bytes = 1 << 20, const std::string& model = "model", int64_t max_pending_bytes = 1 << 30) {
    store_.reset();
    auto store = SessionStore::Open({.folder = folder_,
                                     .limit_bytes = limit_bytes,
                                     .quota = [this](const std::string& tenant) { return quotas_[tenant]; },
                                     .max_pending_bytes = max_pending_bytes,
                                     .now = [this] { return now_; },
                                     .model = model,
                                     .on_save = [this](const SaveEvent& event) { events_.push_back(event); }});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  std::string BackendOf(const std::string& id, const std::string& tenant = "tenant") const {
    return folder_ + "/" + SessionFileName({.tenant_hash = TenantHash(tenant), .id = id});
  }

  absl::Status Begin(RequestKey key, const std::string& id, const std::string& tenant = "tenant") {
    return store_->Begin(key, Header(id, tenant));
  }
  v1::SessionFile Header(const std::string& id, const std::string& tenant = "tenant") const {
    v1::SessionFile file;
    file.set_model("model");
    file.mutable_request()->set_session_id(id);
    file.mutable_request()->set_cache_salt(tenant);
    file.mutable_request()->mutable_token_ids()->add_ids(4);
    file.add_stop_token_ids(11);
    file.set_stop_token(-1);
    return file;
  }
  // A request that ran to its end, or was cut short, under the id.
  void Write(const std::string& id, FinishReason finish = FinishReason::kNone, int64_t num_tokens = 2,
             const std::string& tenant = "tenant") {
    ASSERT_TRUE(Begin(1, id, tenant).ok());
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
    store_->Delete(id, tenant, [&](absl::Status status) { promise.set_value(std::move(status)); });
    return promise.get_future().get();
  }

  std::vector<v1::Session> List(const std::string& tenant) const { return store_->List(tenant).value(); }
  absl::StatusOr<SessionStore::Erased> Erase(const std::string& tenant) {
    std::promise<absl::StatusOr<SessionStore::Erased>> promise;
    store_->Erase(tenant, [&](auto erased) { promise.set_value(std::move(erased)); });
    return promise.get_future().get();
  }
  std::vector<std::string> Ids(const std::string& tenant) const {
    std::vector<std::string> ids;
    for (const v1::Session& session : List(tenant)) ids.push_back(session.session_id());
    return ids;
  }

  const std::string folder_;
  absl::Time now_ = absl::Now();  // moved by tests, while the store's thread has nothing to do
  // A disk that does nothing from Stall on.
  void Stall() {
    store_->Load("nobody", "tenant", [this](const auto&) { resume_.get_future().wait(); });
  }
  void Resume() {
    resume_.set_value();
    WaitUntilWritten();
  }

  std::map<std::string, SessionQuota> quotas_;
  std::promise<void> resume_;
  std::vector<SaveEvent>
      events_;  // of requests with deliver_saved_only; read it while the store's thread has nothing to do
  std::unique_ptr<SessionStore> store_;
};

}  // namespace berth

#endif  // BERTH_TESTS_SERVER_STORAGE_SESSION_STORE_TEST_H_
