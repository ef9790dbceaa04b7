// Sessions over gRPC: a server that goes away in the middle, and another that continues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <limits>
#include <string>

#include "server/storage/session_file.h"
#include "server/storage/session_id.h"
#include "tests/server/api/test_server.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kMaxTokens = 40;

class SessionsTest : public ::testing::Test {
 protected:
  SessionsTest() : folder_(std::string(std::getenv("TEST_TMPDIR")) + "/service") { fs::remove_all(folder_); }

  // As if the one before had never been; its files stay.
  void Start(bool with_sessions = true) {
    server_.reset();
    TestServer::Options options;
    if (with_sessions) options.session_dir = folder_;
    options.session_dir_limit = session_dir_limit_;
    options.tenants = tenants_;
    server_ = std::make_unique<TestServer>(options);
  }
  static v1::GenerateRequest MakeRequest(const std::string& session_id, uint32_t autosave_tokens = 0) {
    v1::GenerateRequest request;
    for (int32_t token : {1, 2, 3, 4, 5}) request.mutable_token_ids()->add_ids(token);
    request.mutable_stopping()->set_max_tokens(kMaxTokens);
    request.mutable_sampling()->set_seed(7);
    request.set_logprobs(0);
    request.set_cache_salt("tenant");
    if (!session_id.empty()) request.set_session_id(session_id);
    if (autosave_tokens > 0) request.set_autosave_tokens(autosave_tokens);
    return request;
  }
  std::string File(const std::string& id) const {
    return folder_ + "/" + SessionFileName({.tenant_hash = TenantHash("tenant"), .id = id});
  }
  static v1::ResumeSessionRequest ResumeOf(const std::string& session_id, uint32_t received_tokens = 0) {
    v1::ResumeSessionRequest request;
    request.set_session_id(session_id);
    request.set_tenant("tenant");
    request.set_received_tokens(received_tokens);
    return request;
  }
  Answer Resume(const v1::ResumeSessionRequest& request) { return Call(server_.get(), request).ReadAll(); }
  grpc::Status Save(const std::string& id, const std::string& tenant, v1::Session* session = nullptr) {
    grpc::ClientContext context;
    return Save(&context, id, tenant, session);
  }
  grpc::Status Save(grpc::ClientContext* context, const std::string& id, const std::string& tenant,
                    v1::Session* session = nullptr) {
    v1::SaveSessionRequest request;
    request.set_session_id(id);
    request.set_tenant(tenant);
    v1::SaveSessionResponse response;
    const grpc::Status status = server_->sessions_stub->Save(context, request, &response);
    if (session != nullptr) *session = response.session();
    return status;
  }
  grpc::Status Delete(const std::string& id) {
    grpc::ClientContext context;
    v1::DeleteSessionRequest request;
    request.set_session_id(id);
    request.set_tenant("tenant");
    v1::DeleteSessionResponse response;
    return server_->sessions_stub->Delete(&context, request, &response);
  }
  // Ends the call's request with the step that waits at the gate.
  void AbortAll(Call* call) {
    grpc::ClientContext context;
    v1::AbortRequest request;
    request.set_tenant("tenant");
    request.set_all(true);
    v1::AbortResponse response;
    EXPECT_TRUE(server_->control_stub->Abort(&context, request, &response).ok());
    server_->gate.Open();
    call->ReadAll();
    WaitUntil([this] { return server_->admission.totals().requests == 0; }, "the end of the request");
  }
  v1::ListSessionsResponse List() {
    grpc::ClientContext context;
    v1::ListSessionsRequest request;
    request.set_tenant("tenant");
    v1::ListSessionsResponse response;
    EXPECT_TRUE(server_->sessions_stub->List(&context, request, &response).ok());
    return response;
  }
  // The answer to the request without interruption.
  Answer Whole(v1::GenerateRequest request) {
    request.clear_session_id();
    request.clear_autosave_tokens();
    request.clear_deliver_saved_only();
    return Call(server_.get(), request).ReadAll();
  }
  // `whole` from its token `received` on.
  static void ExpectRest(const Answer& answer, const Answer& whole, size_t received) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.tokens, std::vector<int32_t>(whole.tokens.begin() + received, whole.tokens.end()));
    // The codec's tokens are a character each, or special and none.
    size_t characters = 0;
    for (size_t i = 0; i < received; ++i) characters += FakeTokenText(whole.tokens[i], true).size();
    EXPECT_EQ(answer.text, whole.text.substr(characters));
    EXPECT_EQ(answer.finish_reason(), whole.finish_reason());
    const v1::GenerateResponse& last = answer.messages.back();
    EXPECT_EQ(last.usage().completion_tokens(), whole.tokens.size());
    int num_logprobs = 0;
    for (const v1::GenerateResponse& message : answer.messages) num_logprobs += message.logprobs_size();
    EXPECT_EQ(static_cast<size_t>(num_logprobs), whole.tokens.size() - received);
    EXPECT_EQ(last.stop_string(), whole.messages.back().stop_string());
  }

  const std::string folder_;
  int64_t session_dir_limit_ = 1 << 20;
  std::string tenants_ = "{}";
  std::unique_ptr<TestServer> server_;
};

TEST_F(SessionsTest, AnIdIsFreeOnceTheStreamHasEnded) {
  Start();
  v1::GenerateRequest request = MakeRequest("s");
  request.mutable_stopping()->set_max_tokens(2);
  for (int i = 0; i < 20; ++i) {
    const grpc::Status status = Call(server_.get(), request).ReadAll().status;
    ASSERT_TRUE(status.ok()) << status.error_message() << " at " << i;
  }
}

TEST_F(SessionsTest, WhatWasSavedOnTheWayGoesOnInAnotherServer) {
  Start();
  const v1::GenerateRequest request = MakeRequest("s", /*autosave_tokens=*/8);
  const Answer whole = Whole(request);
  server_->gate.Close();
  Call call(server_.get(), request);
  server_->gate.Allow(21);  // one of prefill: 21 tokens
  while (call.answer.tokens.size() < 21) ASSERT_TRUE(call.ReadOne());
  // The file as it is now is what a crash would leave; what the server writes while it ends is not looked at.
  WaitUntil([this] { return List().sessions_size() > 0 && List().sessions(0).output_tokens() == 16; }, "two saves");
  const fs::path file = File("s");
  const fs::path kept = folder_ + "/kept";
  fs::copy_file(file, kept);
  call.context.TryCancel();
  server_->gate.Open();
  call.ReadAll();
  for (const size_t received : {0, 5, 16, 21, 40}) {
    server_.reset();
    fs::copy_file(kept, file, fs::copy_options::overwrite_existing);
    Start();
    EXPECT_EQ(List().sessions(0).output_tokens(), 16);
    ExpectRest(Resume(ResumeOf("s", received)), whole, received);
  }
  // By now it is over: there is nothing to compute, and still all to say.
  for (const size_t received : {0, 39, 40}) {
    Start();
    EXPECT_TRUE(List().sessions(0).ended());
    ExpectRest(Resume(ResumeOf("s", received)), whole, received);
    EXPECT_EQ(server_->Load().generation_tokens(), 0);
  }
}

// Each message that the client gets is in the file by then, whatever a crash would leave.
TEST_F(SessionsTest, DeliverSavedOnlyNeverDeliversWhatACrashWouldLose) {
  Start();
  v1::GenerateRequest request = MakeRequest("s", /*autosave_tokens=*/8);
  const Answer whole = Whole(request);
  request.set_deliver_saved_only(true);
  server_->gate.Close();
  Call call(server_.get(), request);
  server_->gate.Allow(21);  // one of prefill: 21 tokens
  const auto in_file = [this] {
    const absl::StatusOr<SessionFileContent> content = ReadSessionFile(File("s"), false);
    return content.ok() ? static_cast<size_t>(content->file.output_size()) : 0;
  };
  while (call.answer.tokens.size() < 16) {
    ASSERT_TRUE(call.ReadOne());
    EXPECT_LE(call.answer.tokens.size(), in_file());
  }
  // Whole had 40.
  WaitUntil([this] { return server_->Load().generation_tokens() == 21 + 40; }, "the steps to end");
  const fs::path kept = folder_ + "/kept";
  fs::copy_file(File("s"), kept);
  EXPECT_EQ(call.answer.tokens.size(), 16u);
  server_->gate.Open();
  while (call.ReadOne()) EXPECT_LE(call.answer.tokens.size(), in_file());
  ExpectRest(call.ReadAll(), whole, 0);
  server_.reset();
  fs::copy_file(kept, File("s"), fs::copy_options::overwrite_existing);
  Start();
  ExpectRest(Resume(ResumeOf("s", 16)), whole, 16);
}

TEST_F(SessionsTest, DeliverSavedOnlyEndsWithTheErrorOfTheSave) {
  session_dir_limit_ = 3000;  // a few saves fit
  Start();
  v1::GenerateRequest request = MakeRequest("s", /*autosave_tokens=*/1);
  const Answer whole = Whole(request);
  request.set_deliver_saved_only(true);
  server_->gate.Close();
  Call call(server_.get(), request);
  // Step by step, so that every save happens: one that waits is replaced by the next.
  do {
    server_->gate.Allow(1);
  } while (call.ReadOne());
  server_->gate.Open();
  const Answer answer = call.ReadAll();
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(
      answer.status.error_message(),
      testing::HasSubstr("deliver_saved_only: the session was not saved, so the output ends here: a session of "));
  EXPECT_LT(answer.tokens.size(), whole.tokens.size());
  // What the client has is what is saved.
  const absl::StatusOr<SessionFileContent> content = ReadSessionFile(File("s"), false);
  const int64_t in_file = content.ok() ? content->file.output_size() : 0;
  EXPECT_LE(static_cast<int64_t>(answer.tokens.size()), in_file);
}

TEST_F(SessionsTest, AClientThatLeftMayComeBack) {
  Start();
  v1::GenerateRequest request = MakeRequest("s");
  const Answer whole = Whole(request);
  server_->gate.Close();
  {
    Call call(server_.get(), request);
    server_->gate.Allow(10);
    while (call.answer.tokens.size() < 10) ASSERT_TRUE(call.ReadOne());
    call.context.TryCancel();
    server_->gate.Open();
    call.ReadAll();
  }
  WaitUntil([this] { return server_->sessions->stats().num_saves == 1; }, "the save");
  Answer rest;
  WaitUntil(
      [&] {
        rest = Resume(ResumeOf("s", 10));
        return rest.status.error_code() != grpc::StatusCode::FAILED_PRECONDITION;
      },
      "the store to let go of the session");
  ExpectRest(rest, whole, 10);
}

TEST_F(SessionsTest, TokensThatAreReplayedAreNotChargedAgain) {
  // 86 tokens, and practically none more.
  tenants_ = R"({"default": {"tokens_per_second": 0.001, "burst_seconds": 86400}})";
  Start();
  server_->gate.Close();
  Call call(server_.get(), MakeRequest("s"));
  server_->gate.Allow(21);
  while (call.answer.tokens.size() < 21) ASSERT_TRUE(call.ReadOne());
  AbortAll(&call);
  Start();
  server_->gate.Close();
  Call resumed(server_.get(), ResumeOf("s"));
  while (resumed.answer.tokens.size() < 21) ASSERT_TRUE(resumed.ReadOne());
  AbortAll(&resumed);
  // It used 5 tokens of its prompt, and one or two that it generated.
  v1::GenerateRequest request = MakeRequest("");
  request.mutable_stopping()->set_max_tokens(70);
  const grpc::Status status = Call(server_.get(), request).ReadAll().status;
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(SessionsTest, AStopStringEndsItAgain) {
  Start();
  v1::GenerateRequest request = MakeRequest("s");
  const std::string text = Whole(request).text;
  request.mutable_stopping()->add_stop(text.substr(12, 3));
  const Answer whole = Whole(request);
  ASSERT_EQ(whole.finish_reason(), v1::FINISH_REASON_STOP);
  ASSERT_TRUE(Call(server_.get(), request).ReadAll().status.ok());
  EXPECT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
  for (const size_t received : {size_t{0}, size_t{4}, whole.tokens.size()}) {
    Start();
    const Answer answer = Resume(ResumeOf("s", received));
    EXPECT_EQ(answer.tokens, std::vector<int32_t>(whole.tokens.begin() + received, whole.tokens.end()));
    EXPECT_EQ(answer.finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(answer.messages.back().stop_string(), text.substr(12, 3));
    if (received == 0) {
      EXPECT_EQ(answer.text, whole.text);
    }
  }
}

TEST_F(SessionsTest, TheTextOfAStopTokenDoesNotComeAfterAllWhenItIsResumed) {
  Start();
  v1::GenerateRequest request = MakeRequest("s");
  request.mutable_stopping()->add_stop_token_ids(Whole(request).tokens[12]);
  const Answer whole = Whole(request);
  ASSERT_EQ(whole.finish_reason(), v1::FINISH_REASON_STOP);
  const absl::Span<const int32_t> tokens = whole.tokens;
  ASSERT_EQ(whole.text, *server_->codec.Decode(tokens.first(tokens.size() - 1), true));
  ASSERT_TRUE(Call(server_.get(), request).ReadAll().status.ok());
  EXPECT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
  Start();
  const Answer answer = Resume(ResumeOf("s", 0));
  EXPECT_EQ(answer.tokens, whole.tokens);
  EXPECT_EQ(answer.text, whole.text);
  EXPECT_EQ(answer.messages.back().stop_token_id(), whole.tokens.back());
}

TEST_F(SessionsTest, SaveWaitsForTheFile) {
  Start();
  server_->gate.Close();
  constexpr uint32_t kTokens = 500;  // more than steps until the save is answered: the end saves the session again
  v1::GenerateRequest request = MakeRequest("s");
  request.mutable_stopping()->set_max_tokens(kTokens);
  Call call(server_.get(), request);
  server_->gate.Allow(3);
  while (call.answer.tokens.size() < 3) ASSERT_TRUE(call.ReadOne());
  EXPECT_EQ(Save("s", "thief").error_code(), grpc::StatusCode::NOT_FOUND);
  v1::Session session;
  const auto save = [&] { return Save("s", "tenant", &session); };
  EXPECT_TRUE(server_->gate.AllowUntilReady(std::async(std::launch::async, save)).ok());
  EXPECT_GE(session.output_tokens(), 3);
  EXPECT_EQ(session.size_bytes(), static_cast<int64_t>(fs::file_size(File("s"))));
  server_->gate.Open();
  EXPECT_TRUE(call.ReadAll().status.ok());
  EXPECT_EQ(call.answer.tokens.size(), kTokens);
  // For a request that has ended, Save describes the saved session.
  WaitUntil(
      [&] {
        EXPECT_TRUE(Save("s", "tenant", &session).ok());
        return session.ended();
      },
      "the last save");
  EXPECT_EQ(session.output_tokens(), kTokens);
}

TEST_F(SessionsTest, ASaveThatDoesNotFitIsNotToBeTriedAgain) {
  session_dir_limit_ = 10;
  Start();
  server_->gate.Close();
  Call call(server_.get(), MakeRequest("s"));
  server_->gate.Allow(3);
  ASSERT_TRUE(call.ReadOne());
  grpc::ClientContext context;
  const auto save = [&] { return Save(&context, "s", "tenant"); };
  EXPECT_EQ(server_->gate.AllowUntilReady(std::async(std::launch::async, save)).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto pushback = context.GetServerTrailingMetadata().find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, context.GetServerTrailingMetadata().end());
  EXPECT_EQ(pushback->second, "-1");
  server_->gate.Open();
  call.ReadAll();
}

TEST_F(SessionsTest, RefusesWithTheReason) {
  using Code = grpc::StatusCode;
  Start();
  const auto code_of = [this](const v1::GenerateRequest& request) {
    return Call(server_.get(), request).ReadAll().status.error_code();
  };
  EXPECT_EQ(code_of(MakeRequest("../etc")), Code::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(MakeRequest("", /*autosave_tokens=*/3)), Code::INVALID_ARGUMENT);
  for (const char* id : {"", "s"}) {  // without a session, and without autosave_tokens
    v1::GenerateRequest request = MakeRequest(id);
    request.set_deliver_saved_only(true);
    EXPECT_EQ(code_of(request), Code::INVALID_ARGUMENT);
  }
  EXPECT_EQ(Resume(ResumeOf("a/b")).status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(Resume(ResumeOf("none")).status.error_code(), Code::NOT_FOUND);
  EXPECT_EQ(Save("none", "tenant").error_code(), Code::NOT_FOUND);
  EXPECT_EQ(Delete("none").error_code(), Code::NOT_FOUND);
  server_->gate.Close();
  Call call(server_.get(), MakeRequest("s"));
  server_->gate.Allow(1);
  ASSERT_TRUE(call.ReadOne());
  EXPECT_EQ(code_of(MakeRequest("s")), Code::FAILED_PRECONDITION);
  EXPECT_EQ(Resume(ResumeOf("s")).status.error_code(), Code::FAILED_PRECONDITION);
  EXPECT_EQ(Delete("s").error_code(), Code::FAILED_PRECONDITION);
  server_->gate.Open();
  EXPECT_TRUE(call.ReadAll().status.ok());
  EXPECT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
  Start();
  v1::ResumeSessionRequest other = ResumeOf("s");
  other.set_tenant("thief");
  EXPECT_EQ(Resume(other).status.error_code(), Code::NOT_FOUND);
  EXPECT_EQ(Resume(other).status.error_message(), "session_id: there is no session \"s\"");
  EXPECT_EQ(Save("s", "thief").error_message(), "session_id: there is no session \"s\"");
  EXPECT_EQ(Resume(ResumeOf("s", kMaxTokens + 1)).status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_TRUE(Resume(ResumeOf("s")).status.ok());
  grpc::Status deleted;
  WaitUntil(
      [&] {
        deleted = Delete("s");
        return deleted.error_code() != Code::FAILED_PRECONDITION;
      },
      "the store to let go of the session");
  EXPECT_TRUE(deleted.ok());
  EXPECT_EQ(List().sessions_size(), 0);
  Start(/*with_sessions=*/false);
  EXPECT_EQ(code_of(MakeRequest("s")), Code::FAILED_PRECONDITION);
  EXPECT_EQ(Resume(ResumeOf("s")).status.error_code(), Code::FAILED_PRECONDITION);
  EXPECT_EQ(Save("s", "tenant").error_code(), Code::FAILED_PRECONDITION);
}

// Its checksums are right, so that only its values tell.
TEST_F(SessionsTest, AForgedFileIsRefusedAndTheServerStays) {
  Start();
  ASSERT_TRUE(Call(server_.get(), MakeRequest("s")).ReadAll().status.ok());
  EXPECT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
  Start();
  const std::string path = File("s");
  absl::StatusOr<SessionFileContent> content = ReadSessionFile(path, /*with_snapshot=*/true);
  ASSERT_TRUE(content.ok()) << content.status();
  content->file.set_finish(v1::FINISH_REASON_UNSPECIFIED);
  content->file.mutable_output()->Truncate(5);
  content->file.mutable_output_logprobs()->DeleteSubrange(5, content->file.output_logprobs_size() - 5);
  content->file.mutable_request()->mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(WriteSessionFile(path, content->file, content->snapshot).ok());
  const grpc::Status status = Resume(ResumeOf("s")).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(),
            "session_id: \"s\" cannot be resumed by this server: sampling.temperature: nan is outside [0, 100]");
  content->file.mutable_request()->mutable_sampling()->set_temperature(1);
  ASSERT_TRUE(WriteSessionFile(path, content->file, content->snapshot).ok());
  EXPECT_TRUE(Resume(ResumeOf("s")).status.ok());
}

TEST_F(SessionsTest, ErrorsTellNoPathOfTheServer) {
  Start();
  ASSERT_TRUE(Call(server_.get(), MakeRequest("s")).ReadAll().status.ok());
  EXPECT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
  Start();
  fs::resize_file(File("s"), 200);
  const grpc::Status status = Resume(ResumeOf("s")).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("s@"));
  EXPECT_THAT(status.error_message(), ::testing::Not(::testing::HasSubstr(folder_)));
}

}  // namespace
}  // namespace berth
