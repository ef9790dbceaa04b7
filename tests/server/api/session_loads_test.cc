// How sessions that are resumed wait for the disk: in turn, and no longer than their calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "server/request/turn_pool.h"
#include "tests/server/api/test_server.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

class SessionLoadsTest : public ::testing::Test {
 protected:
  SessionLoadsTest() {
    const std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/loads";
    std::filesystem::remove_all(folder);
    TestServer::Options options;
    options.session_dir = folder;
    options.session_dir_limit = 1 << 20;
    server_ = std::make_unique<TestServer>(options);
  }

  // A session that has ended, and whose file is written.
  void MakeSession(const std::string& id, const std::string& tenant) {
    v1::GenerateRequest request;
    for (int32_t token : {1, 2, 3}) request.mutable_token_ids()->add_ids(token);
    request.mutable_stopping()->set_max_tokens(4);
    request.set_cache_salt(tenant);
    request.set_session_id(id);
    ASSERT_TRUE(Call(server_.get(), request).ReadAll().status.ok());
    WaitUntil([&] { return IsSaved(id, tenant); }, "the session's file");
  }
  bool IsSaved(const std::string& id, const std::string& tenant) {
    grpc::ClientContext context;
    v1::SaveSessionRequest request;
    request.set_session_id(id);
    request.set_tenant(tenant);
    v1::SaveSessionResponse response;
    return server_->sessions_stub->Save(&context, request, &response).ok();
  }
  static v1::ResumeSessionRequest ResumeOf(const std::string& id, const std::string& tenant = "tenant") {
    v1::ResumeSessionRequest request;
    request.set_session_id(id);
    request.set_tenant(tenant);
    return request;
  }
  // Has the store's thread wait, once it has done what it was given before, until the result is set.
  std::promise<void> HoldStore() {
    std::promise<void> release;
    server_->sessions->Erase("nobody", [waits = release.get_future().share()](const auto&) { waits.wait(); });
    return release;
  }
  void WaitForLoads(int64_t running, int64_t waiting) {
    WaitUntil(
        [&] {
          const TurnPoolLoad load = server_->loads.load();
          return load.running == running && load.waiting == waiting;
        },
        "sessions that wait to be loaded");
  }
  // Notes which sessions have begun, whenever the store's thread has done something else. A session runs at least until
  // that thread has written its end, so none is missed.
  void NoteBeginnings() {
    server_->sessions->Erase("nobody", [this](const auto&) {
      for (const char* tenant : {"tenant", "another"}) {
        const auto sessions = server_->sessions->List(tenant);
        for (const v1::Session& session : *sessions) {
          const std::string& id = session.session_id();
          if (session.running() && std::find(order_.begin(), order_.end(), id) == order_.end()) order_.push_back(id);
        }
      }
      if (stop_noting_) return noted_.set_value();
      NoteBeginnings();
    });
  }

  std::unique_ptr<TestServer> server_;
  std::vector<std::string> order_;
  std::atomic<bool> stop_noting_ = false;
  std::promise<void> noted_;
};

TEST_F(SessionLoadsTest, ASessionThatWaitsToBeLoadedEndsWithItsCallAndWithTheServer) {
  MakeSession("a", "tenant");
  MakeSession("b", "tenant");
  std::promise<void> release = HoldStore();
  Call loading(server_.get(), ResumeOf("a"));
  WaitForLoads(1, 0);
  Call cancelled(server_.get(), ResumeOf("b"));
  WaitForLoads(1, 1);
  cancelled.context.TryCancel();
  WaitForLoads(1, 0);
  WaitUntil([this] { return server_->admission.totals().requests == 1; }, "the end of the cancelled request");

  Call waiting(server_.get(), ResumeOf("b"));
  WaitForLoads(1, 1);
  server_->intake->EndAll();
  EXPECT_EQ(waiting.ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  release.set_value();
  EXPECT_EQ(loading.ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  cancelled.ReadAll();
}

TEST_F(SessionLoadsTest, TenantsTakeTurnsToLoadSessions) {
  for (const char* id : {"a", "b", "c"}) MakeSession(id, "tenant");
  MakeSession("other", "another");
  std::promise<void> release = HoldStore();
  Call first(server_.get(), ResumeOf("a"));
  WaitForLoads(1, 0);
  Call second(server_.get(), ResumeOf("b"));
  WaitForLoads(1, 1);
  Call third(server_.get(), ResumeOf("c"));
  WaitForLoads(1, 2);
  Call other(server_.get(), ResumeOf("other", "another"));
  WaitForLoads(1, 3);
  NoteBeginnings();
  release.set_value();
  for (Call* call : {&first, &second, &third, &other}) EXPECT_TRUE(call->ReadAll().status.ok());
  stop_noting_ = true;
  noted_.get_future().wait();
  EXPECT_THAT(order_, ::testing::ElementsAre("a", "b", "other", "c"));
}

}  // namespace
}  // namespace berth
