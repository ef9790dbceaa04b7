#include "server/auth/server_credentials.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/health.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// SHA-256 of "alice".
constexpr char kHash[] = "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90";

// Keeps the identity of each call, and ends it.
class IdentityRecorder final : public grpc::CallbackGenericService {
 public:
  explicit IdentityRecorder(const IdentitySource* source) : source_(source) {}

  // What happens after a call was let in and before its identity is asked for.
  void SetBeforeIdentity(std::function<void()> act) { before_identity_ = std::move(act); }
  std::vector<Identity> Take() ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(&mutex_);
    return std::exchange(identities_, {});
  }

 private:
  class Ended final : public grpc::ServerGenericBidiReactor {
   public:
    Ended() { Finish(grpc::Status(grpc::StatusCode::ABORTED, "recorded")); }
    void OnDone() override { delete this; }
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    if (before_identity_) before_identity_();
    const MutexLock lock(&mutex_);
    identities_.push_back(source_->Of(*context));
    return new Ended;
  }

  const IdentitySource* const source_;
  std::function<void()> before_identity_;
  Mutex mutex_;
  std::vector<Identity> identities_ ABSL_GUARDED_BY(mutex_);
};

class ServerCredentialsTest : public testing::Test {
 protected:
  void SetUp() override {
    Write(absl::StrCat(R"({"tenants": [{"name": "b"}, {"name": "a", "tokens": [
        {"name": "t", "roles": ["gateway", "operator"], "sha256": ")",
                       kHash, "\"}]}]}"));
    file_ = *TenantsFile::Open(path_);
    authenticator_ = std::make_unique<Authenticator>(Authenticator::Options{.file = file_.get()});
    recorder_ = std::make_unique<IdentityRecorder>(authenticator_.get());
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(recorder_.get());
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", PlaintextCredentials(authenticator_.get(), &audit_, /*local=*/true), &port);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  }

  void Write(const std::string& text) const { std::ofstream(path_, std::ios::trunc) << text; }

  grpc::Status Call(const std::string& method, std::vector<std::pair<std::string, std::string>> metadata) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    for (const auto& [name, value] : metadata) context.AddMetadata(name, value);
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(channel_);
    const std::unique_ptr<grpc::GenericClientAsyncResponseReader> call =
        stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(), &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return status;
  }

  const std::string path_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/tenants.json");
  std::unique_ptr<TenantsFile> file_;
  std::unique_ptr<Authenticator> authenticator_;
  std::ostringstream log_;
  Audit audit_{
      {.logger = std::make_shared<spdlog::logger>("audit", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_))}};
  std::unique_ptr<IdentityRecorder> recorder_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ServerCredentialsTest, ServicesLearnTheIdentityOfACallThatIsLetIn) {
  EXPECT_EQ(Call("/berth.v1.Control/GetLoad", {{"authorization", "Bearer alice"}}).error_message(), "recorded");
  EXPECT_EQ(
      Call("/berth.v1.Control/GetLoad", {{"authorization", "Bearer alice"}, {"berth-tenant", "b"}}).error_message(),
      "recorded");
  const std::vector<Identity> identities = recorder_->Take();
  ASSERT_EQ(identities.size(), 2u);
  for (const Identity& identity : identities) {
    EXPECT_TRUE(identity.authenticated);
    EXPECT_EQ(identity.credential, "t");
    EXPECT_TRUE(identity.Has(Role::kOperator));
    EXPECT_TRUE(identity.Has(Role::kGateway));
    EXPECT_FALSE(identity.Has(Role::kUser));
  }
  EXPECT_EQ(identities[0].tenant, "a");
  EXPECT_EQ(identities[1].tenant, "b");
}

TEST_F(ServerCredentialsTest, ServicesDoNotSeeACallThatIsRefused) {
  EXPECT_EQ(Call("/berth.v1.Control/GetLoad", {}).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Call("/no/Method", {}).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Call("/no/Method", {{"authorization", "Bearer alice"}}).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Call("/berth.v1.Inference/Complete", {{"authorization", "Bearer bob"}}).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(cli::CheckHealth(channel_, "", absl::Minutes(2)), "UNAUTHENTICATED");
  EXPECT_TRUE(recorder_->Take().empty());
  EXPECT_THAT(log_.str(), HasSubstr("refused credential: method=\"/berth.v1.Control/GetLoad\" peer=\"--listen\""));
  EXPECT_THAT(log_.str(), Not(HasSubstr("bob")));
}

TEST_F(ServerCredentialsTest, WhatHasNoCredentialHidesNoRefusalOfOneThatIsKnown) {
  for (int i = 0; i < 3; ++i) Call("/berth.v1.Control/Drain", {{"authorization", "Bearer bob"}});
  const grpc::Status status =
      Call("/berth.v1.Inference/Complete", {{"authorization", "Bearer alice"}, {"berth-tenant", "c"}});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  EXPECT_THAT(log_.str(), HasSubstr("method=\"/berth.v1.Inference/Complete\" peer=\"--listen\" credential=\"t\""));
}

// Between the moment when a call is let in and the moment when a service asks.
TEST_F(ServerCredentialsTest, ACallKeepsItsIdentityWhileItsTokenIsRemoved) {
  recorder_->SetBeforeIdentity([this] {
    Write(R"({"tenants": [{"name": "a"}]})");
    EXPECT_TRUE(file_->Reload().ok());
  });
  EXPECT_EQ(Call("/berth.v1.Control/GetLoad", {{"authorization", "Bearer alice"}}).error_message(), "recorded");
  EXPECT_EQ(recorder_->Take().at(0).tenant, "a");
  EXPECT_EQ(Call("/berth.v1.Control/GetLoad", {{"authorization", "Bearer alice"}}).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ServerCredentialsTest, ACallWhoseTokenIsLongGoneHasNoRoleAndNoTenant) {
  recorder_->SetBeforeIdentity([this] {
    Write(R"({"tenants": [{"name": "a"}]})");
    EXPECT_TRUE(file_->Reload().ok());
    EXPECT_TRUE(file_->Reload().ok());
  });
  EXPECT_EQ(Call("/berth.v1.Control/GetLoad", {{"authorization", "Bearer alice"}}).error_message(), "recorded");
  const Identity identity = recorder_->Take().at(0);
  EXPECT_TRUE(identity.authenticated);
  EXPECT_EQ(identity.roles, 0u);
  EXPECT_GT(identity.tenant.size(), 128u) << "a tenant may have this name";
}

}  // namespace
}  // namespace berth
