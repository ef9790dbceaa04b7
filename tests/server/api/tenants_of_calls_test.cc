// Whose request is whose, once calls have credentials: what one tenant can do and see of another.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/server/api/fake_identities.h"
#include "tests/server/api/test_server.h"

namespace berth {
namespace {

v1::GenerateRequest MakeRequest(const std::string& id = "", uint32_t max_tokens = 1000) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(1);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_seed(1);
  if (!id.empty()) request.set_request_id(id);
  return request;
}

class TenantsOfCallsTest : public ::testing::Test {
 protected:
  TenantsOfCallsTest() {
    sink_->set_pattern("%v");
    Audit::Options audit;
    audit.logger = std::make_shared<spdlog::logger>("audit", sink_);
    audit_ = std::make_unique<Audit>(std::move(audit));
  }
  void Start(const std::string& tenants = "{}", bool authenticated = true) {
    TestServer::Options options;
    options.tenants = tenants;
    options.identities = authenticated ? &identities_ : nullptr;
    options.audit = audit_.get();
    server_ = std::make_unique<TestServer>(options);
  }
  std::unique_ptr<Call> Generate(const v1::GenerateRequest& request, const std::string& tenant) {
    return std::make_unique<Call>(server_.get(), request,
                                  [&](grpc::ClientContext* context) { CallAs(tenant, "user", context); });
  }
  // One that runs until it is ended. REQUIRES: the gate is closed.
  std::unique_ptr<Call> Run(const std::string& id, const std::string& tenant) {
    std::unique_ptr<Call> call = Generate(MakeRequest(id), tenant);
    const bool read = server_->gate.AllowUntilReady(std::async(std::launch::async, [&] { return call->ReadOne(); }));
    EXPECT_TRUE(read) << call->ReadAll().status.error_message();
    return call;
  }
  grpc::Status Complete(const v1::GenerateRequest& request, const std::string& tenant) {
    grpc::ClientContext context;
    CallAs(tenant, "user", &context);
    v1::GenerateResponse response;
    return server_->inference_stub->Complete(&context, request, &response);
  }
  std::vector<std::string> Abort(const v1::AbortRequest& request, const std::string& tenant, const std::string& role,
                                 grpc::Status* status = nullptr) {
    grpc::ClientContext context;
    CallAs(tenant, role, &context);
    v1::AbortResponse response;
    const grpc::Status result = server_->control_stub->Abort(&context, request, &response);
    if (status != nullptr) *status = result;
    return {response.aborted().begin(), response.aborted().end()};
  }
  static v1::AbortRequest AbortOf(const std::string& id) {
    v1::AbortRequest request;
    request.add_request_ids(id);
    return request;
  }
  void ExpectAborted(Call* call) {
    server_->gate.Allow(1);
    EXPECT_TRUE(call->ReadAll().status.ok()) << call->answer.status.error_message();
    EXPECT_EQ(call->answer.finish_reason(), v1::FINISH_REASON_CANCELLED);
  }

  const FakeIdentities identities_;
  std::ostringstream log_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_ = std::make_shared<spdlog::sinks::ostream_sink_mt>(log_);
  std::unique_ptr<Audit> audit_;
  std::unique_ptr<TestServer> server_;
};

using Ids = std::vector<std::string>;

TEST_F(TenantsOfCallsTest, TheCredentialNamesTheTenantAndTheClientMayOnlyRepeatIt) {
  Start();
  v1::GenerateRequest request = MakeRequest("", 2);
  EXPECT_TRUE(Complete(request, "alice").ok());
  request.set_cache_salt("alice");
  EXPECT_TRUE(Complete(request, "alice").ok());
  request.set_cache_salt("bob");
  const grpc::Status other = Complete(request, "alice");
  EXPECT_EQ(other.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(other.error_message(),
            "cache_salt: \"bob\" is not the tenant of the credential, \"alice\"; leave the field out");
  EXPECT_EQ(Generate(request, "alice")->ReadAll().status.error_message(), other.error_message());
}

TEST_F(TenantsOfCallsTest, TheTenantsLimitsHoldForTheCredential) {
  Start(R"({"tenants": [{"name": "alice", "running_sequences": 1}]})");
  server_->gate.Close();
  const std::unique_ptr<Call> first = Run("", "alice");
  const grpc::Status second = Complete(MakeRequest(), "alice");
  EXPECT_EQ(second.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(second.error_message().find("tenant \"alice\""), std::string::npos) << second.error_message();
  const std::unique_ptr<Call> bobs = Run("", "bob");
  server_->gate.Open();
  EXPECT_TRUE(first->ReadAll().status.ok());
  EXPECT_TRUE(bobs->ReadAll().status.ok());
}

TEST_F(TenantsOfCallsTest, EachTenantHasItsOwnRequestIds) {
  Start();
  server_->gate.Close();
  const std::unique_ptr<Call> alices = Run("same", "alice");
  const std::unique_ptr<Call> bobs = Run("same", "bob");
  EXPECT_EQ(Complete(MakeRequest("same"), "bob").error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Abort(AbortOf("same"), "carol", "user"), Ids());  // as an unknown one
  EXPECT_EQ(Abort(AbortOf("same"), "bob", "user"), Ids({"same"}));
  ExpectAborted(bobs.get());
  server_->gate.Open();
  EXPECT_EQ(alices->ReadAll().finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(TenantsOfCallsTest, OnlyAnOperatorAbortsOthersRequests) {
  Start();
  server_->gate.Close();
  const std::unique_ptr<Call> first = Run("a", "alice");
  const std::unique_ptr<Call> second = Run("b", "alice");
  const std::unique_ptr<Call> bobs = Run("a", "bob");
  v1::AbortRequest abort = AbortOf("a");
  abort.set_tenant("alice");
  grpc::Status status;
  EXPECT_EQ(Abort(abort, "bob", "user", &status), Ids());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  v1::AbortRequest unknown = AbortOf("a");
  unknown.set_tenant("nobody");
  grpc::Status of_unknown;
  Abort(unknown, "bob", "user", &of_unknown);
  EXPECT_EQ(of_unknown.error_code(), status.error_code());  // the answer tells nothing about who there is
  EXPECT_EQ(of_unknown.error_message(), status.error_message());

  EXPECT_EQ(Abort(abort, "ops", "operator", &status), Ids({"a"}));
  EXPECT_TRUE(status.ok()) << status.error_message();
  ExpectAborted(first.get());
  v1::AbortRequest all;
  all.set_all(true);
  all.set_tenant("alice");
  EXPECT_EQ(Abort(all, "ops", "operator"), Ids({"b"}));
  ExpectAborted(second.get());
  v1::AbortRequest own;
  own.set_all(true);
  EXPECT_EQ(Abort(own, "bob", "user", &status), Ids({"a"}));
  ExpectAborted(bobs.get());

  const std::string log = log_.str();
  EXPECT_NE(log.find("operator call: method=\"Abort\" peer=\"ipv4:127.0.0.1:"), std::string::npos) << log;
  EXPECT_NE(log.find("credential=\"key of bob\" tenant=\"alice\" outcome=PERMISSION_DENIED"), std::string::npos) << log;
  EXPECT_NE(log.find("credential=\"key of ops\" tenant=\"alice\" outcome=OK"), std::string::npos) << log;
  EXPECT_EQ(log.find("tenant=\"bob\""), std::string::npos) << log;  // ending one's own is no operator call
}

TEST_F(TenantsOfCallsTest, AbortOfAllNeedsATenantAndNoIds) {
  Start("{}", /*authenticated=*/false);
  v1::AbortRequest all;
  all.set_all(true);
  grpc::Status status;
  Abort(all, "", "user", &status);
  EXPECT_EQ(status.error_message(), "all: tenant must be set");
  all.set_tenant("x");
  Abort(all, "", "user", &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
  all.add_request_ids("a");
  Abort(all, "", "user", &status);
  EXPECT_EQ(status.error_message(), "all: request_ids must be empty");
}

TEST_F(TenantsOfCallsTest, WithoutAuthenticationIdsAreOneSetAndTheSaltIsTheTenant) {
  Start("{}", /*authenticated=*/false);
  server_->gate.Close();
  v1::GenerateRequest request = MakeRequest("same");
  request.set_cache_salt("salt");
  Call call(server_.get(), request);
  server_->gate.Allow(1);
  ASSERT_TRUE(call.ReadOne());
  request.set_cache_salt("other");
  EXPECT_EQ(Call(server_.get(), request).ReadAll().status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  v1::AbortRequest abort = AbortOf("same");
  abort.set_tenant("other");
  EXPECT_EQ(Abort(abort, "", "user"), Ids());
  abort.set_tenant("salt");
  EXPECT_EQ(Abort(abort, "", "user"), Ids({"same"}));
  ExpectAborted(&call);
}

// Calls of --gateway_listen are those of a tenant although --listen has no authentication.
TEST_F(TenantsOfCallsTest, WithoutAuthenticationAbortReachesTheRequestsOfTheGatewaysListener) {
  Start();
  server_->gate.Close();
  const std::unique_ptr<Call> call = Run("a", "web");
  v1::AbortRequest abort = AbortOf("a");
  abort.set_tenant("other");
  EXPECT_EQ(Abort(abort, "", "none"), Ids());
  abort.set_tenant("web");
  EXPECT_EQ(Abort(abort, "", "none"), Ids({"a"}));
  ExpectAborted(call.get());
}

TEST_F(TenantsOfCallsTest, AUserSeesLessOfTheServer) {
  Start();
  for (const std::string role : {"user", "operator"}) {
    const bool is_operator = role == "operator";
    grpc::ClientContext info_context;
    CallAs("alice", role, &info_context);
    v1::GetServerInfoResponse info;
    ASSERT_TRUE(server_->control_stub->GetServerInfo(&info_context, {}, &info).ok());
    EXPECT_EQ(info.version(), "test");
    EXPECT_EQ(info.num_threads() > 0, is_operator);
    EXPECT_EQ(info.uptime_seconds() > 0, is_operator);
    grpc::ClientContext steps_context;
    CallAs("alice", role, &steps_context);
    v1::GetStepsResponse steps;
    const grpc::Status status = server_->control_stub->GetSteps(&steps_context, {}, &steps);
    EXPECT_EQ(status.error_code(), is_operator ? grpc::StatusCode::OK : grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(status.error_message(), is_operator ? "" : "GetSteps requires the role operator");
  }
}

}  // namespace
}  // namespace berth
