// The calls of operators: drain, flush, erase a tenant.
#include "server/request/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/api/fake_identities.h"
#include "tests/server/api/test_server.h"
#include "tests/testing/fake_constraint.h"
#include "tests/testing/fake_prefix_disk.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The model has states, so a cached prefix ends where an earlier prompt ended, before the last token.
constexpr int kTokens = 20;
constexpr int32_t kEnd = 99;

v1::GenerateRequest MakeRequest(int first_token, uint32_t max_tokens, int num_tokens = kTokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < num_tokens; ++i) request.mutable_token_ids()->add_ids(first_token + i);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_seed(1);
  return request;
}

// Its structure allows 5, 6 and the end.
v1::GenerateRequest MakeStructured() {
  v1::GenerateRequest request = MakeRequest(1, 5);
  request.mutable_stopping()->add_stop_token_ids(kEnd);
  request.mutable_structure()->set_regex("56");
  return request;
}

class OperationsTest : public ::testing::Test {
 protected:
  OperationsTest() : folder_(std::string(std::getenv("TEST_TMPDIR")) + "/sessions") {
    std::filesystem::remove_all(folder_);
    sink_->set_pattern("%v");
    Audit::Options audit;
    audit.logger = std::make_shared<spdlog::logger>("audit", sink_);
    audit_ = std::make_unique<Audit>(std::move(audit));
    options_.identities = &identities_;
    options_.audit = audit_.get();
    options_.session_dir = folder_;
    options_.share_prefixes = true;
    options_.host_tier_bytes = 1 << 20;
    options_.disk = &disk_;
    options_.compile_grammar = [](const GrammarSpec&, const std::stop_token&) -> absl::StatusOr<CompiledGrammar> {
      const std::vector<std::vector<int32_t>> choices = {{5, 6}};
      return CompiledGrammar{std::make_shared<ChoiceConstraint>(choices, std::vector<int32_t>{kEnd}), 100};
    };
    options_.drain = [this] { ++num_drains_; };
  }
  ~OperationsTest() override {
    released_.set_value();
    server_.reset();
  }
  void Start() { server_ = std::make_unique<TestServer>(options_); }

  // Calls `method` of Control with `role`.
  template <typename Method, typename Request, typename Response>
  grpc::Status Operate(Method method, const Request& request, Response* response,
                       const std::string& role = "operator") {
    grpc::ClientContext context;
    CallAs("ops", role, &context);
    return (server_->control_stub.get()->*method)(&context, request, response);
  }
  grpc::Status Flush(std::optional<std::string> tenant, v1::FlushCacheResponse* response) {
    v1::FlushCacheRequest request;
    if (tenant) request.set_tenant(*tenant);
    return Operate(&v1::Control::Stub::FlushCache, request, response);
  }
  grpc::Status Erase(const std::string& tenant, v1::EraseTenantResponse* response) {
    v1::EraseTenantRequest request;
    request.set_tenant(tenant);
    return Operate(&v1::Control::Stub::EraseTenant, request, response);
  }
  std::unique_ptr<Call> Generate(const v1::GenerateRequest& request, const std::string& tenant) {
    return std::make_unique<Call>(server_.get(), request,
                                  [&](grpc::ClientContext* context) { CallAs(tenant, "user", context); });
  }
  // The prompt tokens of the request that were cached.
  int Run(const v1::GenerateRequest& request, const std::string& tenant) {
    const std::unique_ptr<Call> call = Generate(request, tenant);
    EXPECT_TRUE(call->ReadAll().status.ok()) << call->answer.status.error_message();
    return static_cast<int>(call->answer.messages.back().usage().cached_tokens());
  }
  int NumSessions(const std::string& tenant) {
    grpc::ClientContext context;
    CallAs(tenant, "user", &context);
    v1::ListSessionsResponse response;
    EXPECT_TRUE(server_->sessions_stub->List(&context, {}, &response).ok());
    return response.sessions_size();
  }
  int64_t NumFiles() const {
    int64_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder_))
      count += file.path().extension() == ".session";
    return count;
  }
  void WaitForRequests(int64_t n) {
    WaitUntil([this, n] { return server_->registry.size() == n; }, "the number of requests under way");
  }
  // Runs a structured request of the tenant, on a server that has run nothing: its prefix goes to both tiers, however
  // slow copies are.
  void FillTiersAndGrammars(const std::string& tenant) {
    Run(MakeStructured(), tenant);
    const auto filled = [this] {
      const v1::GetLoadResponse load = server_->Load();
      return load.host_tier_prefix_bytes() > 0 && load.disk_tier_bytes() > 0;
    };
    WaitUntil(filled, "the prefix to be in the tiers");
    ASSERT_GT(server_->grammars->load().cache_bytes, 0);
    ASSERT_EQ(server_->grammars->load().compiled, 1);
  }
  // Makes the tokenizer take until the test ends for texts that begin with "slow".
  void HoldSlowTexts() {
    server_->codec.on_encode = [this](std::string_view text, const StopCheck&) {
      if (text.substr(0, 4) == "slow") release_.wait();
    };
  }

  const std::string folder_;
  const FakeIdentities identities_;
  std::ostringstream log_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_ = std::make_shared<spdlog::sinks::ostream_sink_mt>(log_);
  std::unique_ptr<Audit> audit_;
  FakePrefixDisk disk_;
  int num_drains_ = 0;
  std::promise<void> released_;
  std::shared_future<void> release_{released_.get_future()};
  TestServer::Options options_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(OperationsTest, OnlyAnOperatorMayCallThem) {
  Start();
  v1::EraseTenantRequest erase;
  erase.set_tenant("ops");  // not even for the caller's own tenant
  v1::EraseTenantResponse erased;
  v1::FlushCacheResponse flushed;
  v1::DrainResponse drained;
  for (const grpc::Status& status : {Operate(&v1::Control::Stub::EraseTenant, erase, &erased, "user"),
                                     Operate(&v1::Control::Stub::FlushCache, v1::FlushCacheRequest(), &flushed, "user"),
                                     Operate(&v1::Control::Stub::Drain, v1::DrainRequest(), &drained, "user")}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(), HasSubstr("requires the role operator"));
  }
  EXPECT_EQ(num_drains_, 0);
  for (const char* const method : {"Drain", "FlushCache", "EraseTenant"}) {
    EXPECT_THAT(log_.str(), HasSubstr(absl::StrCat("method=\"", method, "\"")));
  }
  EXPECT_THAT(log_.str(), HasSubstr("credential=\"key of ops\" tenant=\"ops\" outcome=PERMISSION_DENIED"));
}

TEST_F(OperationsTest, DrainAnswersWithWhatIsUnderWay) {
  Start();
  server_->gate.Close();
  const std::unique_ptr<Call> call = Generate(MakeRequest(1, 5), "alice");
  WaitForRequests(1);
  v1::DrainResponse response;
  const grpc::Status status = Operate(&v1::Control::Stub::Drain, v1::DrainRequest(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.requests(), 1);
  EXPECT_EQ(response.grace_seconds(), 7);
  EXPECT_EQ(num_drains_, 1);
  EXPECT_THAT(log_.str(), HasSubstr("operator call: method=\"Drain\""));
  server_->gate.Open();
  EXPECT_TRUE(call->ReadAll().status.ok());
}

TEST_F(OperationsTest, FlushDropsThePrefixesOfATenantOrAll) {
  Start();
  const v1::GenerateRequest request = MakeRequest(1, 5, kTokens + 2);
  for (const std::string tenant : {"alice", "bob"}) {
    EXPECT_EQ(Run(MakeRequest(1, 5), tenant), 0);
    EXPECT_EQ(Run(request, tenant), kTokens);
  }
  v1::FlushCacheResponse response;
  EXPECT_TRUE(Flush("alice", &response).ok());
  EXPECT_GT(response.arena_bytes(), 0);
  EXPECT_EQ(Run(request, "alice"), 0);
  EXPECT_EQ(Run(request, "bob"), kTokens);
  EXPECT_TRUE(Flush(std::nullopt, &response).ok());
  const v1::GetLoadResponse load = server_->Load();
  for (const v1::PoolOccupancy& pool : load.cache().pools()) EXPECT_EQ(pool.cached_units(), 0);
  EXPECT_EQ(Run(request, "bob"), 0);
  EXPECT_THAT(log_.str(), HasSubstr("method=\"FlushCache\""));
  EXPECT_THAT(log_.str(), HasSubstr("tenant=\"alice\" outcome=OK"));

  v1::FlushCacheRequest bad;
  bad.set_tenant(std::string(200, 'x'));
  EXPECT_EQ(Operate(&v1::Control::Stub::FlushCache, bad, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(OperationsTest, FlushDropsTheTiersAndWithoutATenantTheGrammars) {
  Start();
  FillTiersAndGrammars("alice");
  const int64_t grammar_bytes = server_->grammars->load().cache_bytes;
  v1::FlushCacheResponse of_tenant;
  ASSERT_TRUE(Flush("alice", &of_tenant).ok());
  EXPECT_GT(of_tenant.arena_bytes(), 0);
  EXPECT_GT(of_tenant.host_tier_bytes(), 0);
  EXPECT_GT(of_tenant.disk_tier_bytes(), of_tenant.host_tier_bytes()) << "a file holds the tokens too";
  EXPECT_EQ(of_tenant.grammar_bytes(), 0) << "all tenants share them";
  const v1::GetLoadResponse load = server_->Load();
  EXPECT_EQ(load.host_tier_prefix_bytes(), 0);
  EXPECT_EQ(load.disk_tier_bytes(), 0);
  Run(MakeStructured(), "bob");
  EXPECT_EQ(server_->grammars->load().compiled, 1);

  v1::FlushCacheResponse of_all;
  ASSERT_TRUE(Flush(std::nullopt, &of_all).ok());
  EXPECT_EQ(of_all.grammar_bytes(), grammar_bytes);
  Run(MakeStructured(), "bob");
  EXPECT_EQ(server_->grammars->load().compiled, 2);
}

TEST_F(OperationsTest, AFileThatCannotBeRemovedIsSaid) {
  disk_.on_sync = [] { return absl::UnavailableError("cannot remove it"); };
  Start();
  v1::FlushCacheResponse flushed;
  const grpc::Status status = Flush(std::nullopt, &flushed);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "cannot remove it");
  v1::EraseTenantResponse erased;
  EXPECT_EQ(Erase("alice", &erased).error_message(), "cannot remove it");
}

TEST_F(OperationsTest, TheAuditLogHasWhatADeleteCameTo) {
  Start();
  v1::GenerateRequest saved = MakeRequest(1, 5);
  saved.set_session_id("ended");
  Run(saved, "alice");
  WaitUntil([this] { return NumFiles() == 1; }, "the session's file");
  v1::DeleteSessionRequest request;
  request.set_session_id("ended");
  request.set_tenant("alice");
  for (const auto& [code, name] : {std::pair(grpc::StatusCode::OK, "OK"), {grpc::StatusCode::NOT_FOUND, "NOT_FOUND"}}) {
    log_.str("");
    grpc::ClientContext context;
    CallAs("ops", "operator", &context);
    v1::DeleteSessionResponse response;
    EXPECT_EQ(server_->sessions_stub->Delete(&context, request, &response).error_code(), code);
    EXPECT_THAT(log_.str(),
                AllOf(HasSubstr("method=\"Delete\""), HasSubstr(absl::StrCat("tenant=\"alice\" outcome=", name))));
  }
}

TEST_F(OperationsTest, EraseNeedsATenant) {
  Start();
  v1::EraseTenantResponse response;
  const grpc::Status status = Operate(&v1::Control::Stub::EraseTenant, v1::EraseTenantRequest(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "tenant: it must be set");
}

TEST_F(OperationsTest, EraseLeavesNothingOfTheTenantAndEverythingOfOthers) {
  Start();
  HoldSlowTexts();
  for (const std::string tenant : {"alice", "bob"}) {
    v1::GenerateRequest saved = MakeRequest(1, 5);
    saved.set_session_id("ended");
    Run(saved, tenant);
  }
  WaitUntil([this] { return NumFiles() == 2; }, "the sessions' files");
  server_->gate.Close();
  std::vector<std::unique_ptr<Call>> calls;
  for (const std::string tenant : {"alice", "bob"}) {
    // alice's does not come to its end before it is ended.
    v1::GenerateRequest running = MakeRequest(30, tenant == "alice" ? 5000 : 50);
    running.set_session_id("running");
    calls.push_back(Generate(running, tenant));
  }
  WaitForRequests(2);
  v1::GenerateRequest slow = MakeRequest(1, 50);
  slow.set_prompt("slow");  // is not registered before its text is tokenised
  calls.push_back(Generate(slow, "alice"));
  WaitUntil([this] { return server_->admission.totals().requests == 3; }, "the slow request to arrive");

  v1::EraseTenantResponse response;
  std::future<grpc::Status> erased = std::async(std::launch::async, [&] { return Erase("alice", &response); });
  WaitUntil([this] { return !server_->admission.Arrive("alice").ok(); }, "the tenant to be closed");
  const Answer refused = Generate(MakeRequest(1, 5), "alice")->ReadAll();
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.status.error_message(), "tenant \"alice\": an operator erases it now; retry later");
  const auto read_first = [&] { return calls[0]->ReadAll().finish_reason(); };
  EXPECT_EQ(server_->gate.AllowUntilReady(std::async(std::launch::async, read_first)), v1::FINISH_REASON_CANCELLED);
  server_->gate.Open();
  EXPECT_EQ(erased.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "a text is not tokenised yet";
  released_.set_value();
  EXPECT_TRUE(calls[2]->ReadAll().status.ok()) << calls[2]->answer.status.error_message();
  const grpc::Status status = erased.get();
  released_ = std::promise<void>();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GE(response.requests(), 1);  // the one with the text may end by itself before it is ended
  EXPECT_EQ(response.sessions(), 2);
  EXPECT_GT(response.session_bytes(), 0);

  EXPECT_EQ(calls[1]->ReadAll().finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(NumSessions("alice"), 0);
  WaitUntil([this] { return NumSessions("bob") == 2; }, "the save of the session that has just ended");
  EXPECT_EQ(NumFiles(), 2);
  EXPECT_EQ(Run(MakeRequest(1, 5, kTokens + 2), "alice"), 0) << "it is taken again, and finds nothing";
  EXPECT_EQ(Run(MakeRequest(1, 5, kTokens + 2), "bob"), kTokens);
  EXPECT_THAT(log_.str(), HasSubstr("tenant=\"alice\" outcome=OK"));
}

TEST_F(OperationsTest, EraseDropsTheTenantsPrefixesAndAllGrammars) {
  Start();
  FillTiersAndGrammars("alice");
  v1::EraseTenantResponse response;
  ASSERT_TRUE(Erase("alice", &response).ok());
  EXPECT_GT(response.arena_bytes(), 0);
  EXPECT_GT(response.host_tier_bytes(), 0);
  EXPECT_GT(response.disk_tier_bytes(), response.host_tier_bytes()) << "a file holds the tokens too";
  const v1::GetLoadResponse load = server_->Load();
  EXPECT_EQ(load.host_tier_prefix_bytes(), 0);
  EXPECT_EQ(load.disk_tier_bytes(), 0);
  EXPECT_EQ(server_->grammars->load().cache_bytes, 0) << "they do not say whose they are";
  Run(MakeStructured(), "bob");
  EXPECT_EQ(server_->grammars->load().compiled, 2);
}

TEST_F(OperationsTest, EraseGivesUpOnRequestsThatDoNotEnd) {
  options_.operations_timeout = absl::Seconds(1);  // it has asked the request to end by then
  Start();
  server_->gate.Close();
  const std::unique_ptr<Call> call = Generate(MakeRequest(1, 50), "alice");
  WaitForRequests(1);
  // A step that does not end holds the request.
  WaitUntil([this] { return server_->Load().running() > 0; }, "the step");
  v1::EraseTenantResponse response;
  const grpc::Status status = Erase("alice", &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("did not end within 1s; nothing was deleted"));
  server_->gate.Open();
  EXPECT_EQ(call->ReadAll().finish_reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_EQ(Run(MakeRequest(40, 5), "alice"), 0) << "the tenant is open again";
}

}  // namespace
}  // namespace berth
