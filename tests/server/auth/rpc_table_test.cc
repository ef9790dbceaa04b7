// Every RPC of every service with every kind of credential, over plaintext and over TLS. The RPCs come from the
// descriptors of the services that the server says it has: one without a row fails.
//
// To add an RPC: add a row to kRows, with a request that acts on something of the tenant "a".
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "berth/v1/control.grpc.pb.h"
#include "berth/v1/inference.grpc.pb.h"
#include "berth/v1/sessions.grpc.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "tests/server/seven_server.h"
#include "tests/testing/certificates.h"
#include "vllm/engine.grpc.pb.h"

namespace berth {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using grpc::StatusCode;

constexpr StatusCode kOk = StatusCode::OK;
constexpr StatusCode kDenied = StatusCode::PERMISSION_DENIED;
constexpr StatusCode kInvalid = StatusCode::INVALID_ARGUMENT;
constexpr StatusCode kNone = StatusCode::NOT_FOUND;
constexpr StatusCode kUnmet = StatusCode::FAILED_PRECONDITION;  // the model has no tokenizer

// How a call ends. A stream counts as OK once it has answered.
struct Row {
  const char* method;
  const char* request;   // in protobuf's text format
  StatusCode user;       // a user of the tenant "a"
  StatusCode other;      // a user of the tenant "b"
  StatusCode operators;  // an operator, of the tenant "ops"
  StatusCode metrics;    // the role metrics, of the tenant "ops"
  StatusCode gateway;    // the role gateway, naming the tenant "a"
  StatusCode peer;       // the role peer, of the tenant "ops"
};

constexpr char kGenerate[] = "token_ids { ids: 1 } stopping { max_tokens: 2 } cache_salt: 'a'";
constexpr char kVllmGenerate[] = "tokenized { input_ids: 1 } sampling_params { max_tokens: 2 }";
constexpr char kGenerateOfOne[] = "token_ids { ids: 1 } stopping { max_tokens: 2 }";

// "saved" is a session of the tenant "a".
constexpr Row kRows[] = {
    {"berth.v1.Inference.Generate", kGenerate, kOk, kInvalid, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Inference.Generate", kGenerateOfOne, kOk, kOk, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Inference.Complete", kGenerate, kOk, kInvalid, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Inference.Embed", "token_ids { ids: 1 } cache_salt: 'a'", kOk, kInvalid, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Inference.Embed", "token_ids { ids: 1 }", kOk, kOk, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Inference.Tokenize", "text: 'a'", kOk, kOk, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Inference.Detokenize", "token_ids: 1", kOk, kOk, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Sessions.Save", "session_id: 'saved' tenant: 'a'", kOk, kInvalid, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Sessions.Save", "session_id: 'saved'", kOk, kNone, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Sessions.Resume", "session_id: 'saved' tenant: 'a'", kOk, kInvalid, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Sessions.Resume", "session_id: 'saved'", kOk, kNone, kDenied, kDenied, kOk, kDenied},
    {"berth.v1.Sessions.List", "tenant: 'a'", kOk, kInvalid, kOk, kDenied, kOk, kDenied},
    {"berth.v1.Sessions.Delete", "session_id: 'gone' tenant: 'a'", kNone, kInvalid, kNone, kDenied, kNone, kDenied},
    {"berth.v1.Sessions.Delete", "session_id: 'gone'", kNone, kNone, kNone, kDenied, kNone, kDenied},
    {"berth.v1.Control.GetModelInfo", "", kOk, kOk, kOk, kOk, kOk, kOk},
    {"berth.v1.Control.GetServerInfo", "", kOk, kOk, kOk, kOk, kOk, kOk},
    {"berth.v1.Control.GetLoad", "", kDenied, kDenied, kOk, kOk, kOk, kOk},
    {"berth.v1.Control.Abort", "request_ids: 'x' tenant: 'a'", kOk, kDenied, kOk, kDenied, kOk, kDenied},
    {"berth.v1.Control.Abort", "request_ids: 'x'", kOk, kOk, kOk, kDenied, kOk, kDenied},
    {"berth.v1.Control.GetSteps", "last: 1", kDenied, kDenied, kOk, kDenied, kDenied, kDenied},
    {"berth.v1.Control.FlushCache", "tenant: 'a'", kDenied, kDenied, kOk, kDenied, kDenied, kDenied},
    {"berth.v1.Control.EraseTenant", "tenant: 'c'", kDenied, kDenied, kOk, kDenied, kDenied, kDenied},
    {"vllm.grpc.engine.VllmEngine.Generate", kVllmGenerate, kOk, kOk, kDenied, kDenied, kOk, kDenied},
    {"vllm.grpc.engine.VllmEngine.Embed", "tokenized { input_ids: 1 }", kOk, kOk, kDenied, kDenied, kOk, kDenied},
    {"vllm.grpc.engine.VllmEngine.GetTokenizer", "", kUnmet, kUnmet, kDenied, kDenied, kUnmet, kDenied},
    {"vllm.grpc.engine.VllmEngine.HealthCheck", "", kOk, kOk, kOk, kOk, kOk, kOk},
    {"vllm.grpc.engine.VllmEngine.GetModelInfo", "", kOk, kOk, kOk, kOk, kOk, kOk},
    {"vllm.grpc.engine.VllmEngine.GetServerInfo", "", kOk, kOk, kOk, kOk, kOk, kOk},
    {"vllm.grpc.engine.VllmEngine.GetLoads", "", kDenied, kDenied, kOk, kOk, kOk, kOk},
    {"vllm.grpc.engine.VllmEngine.Abort", "request_ids: 'x'", kOk, kOk, kOk, kDenied, kOk, kDenied},
    {"vllm.grpc.engine.VllmEngine.SubscribeKvEvents", "", kDenied, kDenied, kDenied, kDenied, kOk, kDenied},
    {"vllm.grpc.engine.VllmEngine.FlushCache", "", kDenied, kDenied, kOk, kDenied, kDenied, kDenied},
    {"vllm.grpc.engine.VllmEngine.FlushCache", "timeout_s: -1", kDenied, kDenied, kInvalid, kDenied, kDenied, kDenied},
    {"grpc.health.v1.Health.Check", "", kOk, kOk, kOk, kOk, kOk, kOk},
    {"grpc.health.v1.Health.Watch", "", kOk, kOk, kOk, kOk, kOk, kOk},
    {"grpc.reflection.v1.ServerReflection.ServerReflectionInfo", "list_services: ''", kOk, kOk, kOk, kDenied, kOk,
     kDenied},
    {"grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo", "list_services: ''", kOk, kOk, kOk, kDenied, kOk,
     kDenied},
    // The last one: after it the server takes no requests.
    {"berth.v1.Control.Drain", "", kDenied, kDenied, kOk, kDenied, kDenied, kDenied},
};

const MethodDescriptor* FindMethod(const std::string& name) {
  return DescriptorPool::generated_pool()->FindMethodByName(name);
}

// What a caller shows.
struct Credential {
  std::string token;   // "": none
  std::string tenant;  // in berth-tenant; "": none
  CertifiedKey certificate;
};

class RpcTableTest : public testing::TestWithParam<bool> {
 protected:
  RpcTableTest() {
    std::filesystem::create_directories(folder_);
    const CertifiedKey pair = ca_.Issue("server", "DNS:localhost,IP:127.0.0.1");
    Write("cert", pair.cert);
    Write("key", pair.key);
    Write("client_ca", client_ca_.cert());
    Write("tenants", absl::StrCat(R"({"tenants": [{"name": "a", "tokens": [)", SecretToken("user"), ", ",
                                  SecretToken("expired", R"(, "expires": "2001-09-09T01:46:40Z")"), "]",
                                  tls() ? R"(, "certificates": [{"name": "pod", "common_name": "pod.a"}])" : "",
                                  R"(}, {"name": "b", "tokens": [)", SecretToken("other"), R"(]},
                                  {"name": "ops", "tokens": [)",
                                  SecretToken("operator", R"(, "roles": ["operator"])"), ", ",
                                  SecretToken("metrics", R"(, "roles": ["metrics"])"), ", ",
                                  SecretToken("gateway", R"(, "roles": ["gateway"])"), ", ",
                                  SecretToken("peer", R"(, "roles": ["peer"])"), "]}]}"));
    config_.tenants = folder_ + "/tenants";
    config_.sessions.folder = folder_ + "/sessions";
    config_.reflection = "on";
    if (tls()) {
      config_.tls = {.cert = folder_ + "/cert", .key = folder_ + "/key", .client_ca = folder_ + "/client_ca"};
    }
    absl::StatusOr<std::unique_ptr<Server>> server = parts_.Start(config_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~RpcTableTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  bool tls() const { return GetParam(); }

  void Write(const std::string& name, const std::string& text) const { std::ofstream(folder_ + "/" + name) << text; }

  const std::shared_ptr<grpc::Channel>& ChannelWith(const CertifiedKey& certificate) {
    std::shared_ptr<grpc::Channel>& channel = channels_[certificate.cert];
    if (channel != nullptr) return channel;
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                        tls() ? grpc::SslCredentials({ca_.cert(), certificate.key, certificate.cert})
                                              : grpc::InsecureChannelCredentials(),
                                        arguments);
    return channel;
  }

  // How the call of the row ends. A stream is left once it has answered.
  StatusCode Call(const Row& row, const Credential& credential) {
    const MethodDescriptor& method = *FindMethod(row.method);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    if (!credential.token.empty()) context.AddMetadata("authorization", "Bearer secret-of-" + credential.token);
    if (!credential.tenant.empty()) context.AddMetadata("berth-tenant", credential.tenant);
    grpc::GenericStub stub(ChannelWith(credential.certificate));
    grpc::CompletionQueue queue;
    const auto next = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto call =
        stub.PrepareCall(&context, absl::StrCat("/", method.service()->full_name(), "/", method.name()), &queue);
    call->StartCall(nullptr);
    if (next()) {
      const grpc::Slice slice(RequestOf(method, row.request));
      call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
      next();
      grpc::ByteBuffer answer;
      call->Read(&answer, nullptr);
      if (next() && method.server_streaming()) {
        context.TryCancel();
        grpc::Status ignored;
        call->Finish(&ignored, nullptr);
        next();
        return kOk;
      }
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    return status.error_code();
  }

  static std::string RequestOf(const MethodDescriptor& method, const std::string& text) {
    const std::unique_ptr<Message> message(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, message.get())) << method.full_name();
    return message->SerializeAsString();
  }

  void SaveSession() {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer secret-of-user");
    v1::GenerateRequest request;
    ASSERT_TRUE(
        google::protobuf::TextFormat::ParseFromString(absl::StrCat(kGenerate, " session_id: 'saved'"), &request));
    v1::GenerateResponse response;
    const grpc::Status status = v1::Inference::NewStub(ChannelWith({}))->Complete(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  const std::string folder_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/rpc");
  const TestCa ca_{"server CA"};
  const TestCa client_ca_{"client CA"};
  Config config_ = SevenConfig();
  SevenParts parts_;
  std::unique_ptr<Server> server_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_;
};

// gRPC's generated code brings the descriptors of these messages' files, if something uses them.
std::vector<const google::protobuf::Descriptor*> Linked() {
  return {v1::GenerateRequest::descriptor(),
          v1::AbortRequest::descriptor(),
          v1::Session::descriptor(),
          grpc::health::v1::HealthCheckRequest::descriptor(),
          grpc::reflection::v1::ServerReflectionRequest::descriptor(),
          grpc::reflection::v1alpha::ServerReflectionRequest::descriptor()};
}

TEST_P(RpcTableTest, EveryRpcHasARow) {
  ASSERT_EQ(Linked().size(), 6u);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret-of-operator");
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(v1::Control::NewStub(ChannelWith({}))->GetServerInfo(&context, {}, &info).ok());
  std::set<std::string> rows;
  for (const Row& row : kRows) rows.insert(row.method);
  size_t num_methods = 0;
  for (const std::string& name : info.services()) {
    const ServiceDescriptor* const service = DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i, ++num_methods) {
      EXPECT_TRUE(rows.contains(service->method(i)->full_name())) << service->method(i)->full_name();
    }
  }
  EXPECT_EQ(rows.size(), num_methods) << "a row is that of no RPC";
  // A service that the server has and does not name would go unseen: the API's files have these alone.
  for (const google::protobuf::Descriptor* message : Linked()) {
    for (int i = 0; i < message->file()->service_count(); ++i) {
      EXPECT_THAT(info.services(), testing::Contains(message->file()->service(i)->full_name()));
    }
  }
}

TEST_P(RpcTableTest, WithoutAGoodCredentialEveryRpcIsRefused) {
  for (const Row& row : kRows) {
    for (const char* token : {"", "nobody", "expired"}) {
      EXPECT_EQ(Call(row, {.token = token}), StatusCode::UNAUTHENTICATED) << row.method << " with \"" << token << "\"";
    }
    EXPECT_EQ(Call(row, {.token = "gateway", .tenant = "nobody"}), kDenied) << row.method;
    EXPECT_EQ(Call(row, {.token = "user", .tenant = "b"}), kDenied) << row.method;
  }
}

TEST_P(RpcTableTest, EachRoleMayCallWhatIsItsOwn) {
  SaveSession();
  for (const Row& row : kRows) {
    const std::pair<Credential, StatusCode> calls[] = {{{.token = "user"}, row.user},
                                                       {{.token = "other"}, row.other},
                                                       {{.token = "operator"}, row.operators},
                                                       {{.token = "metrics"}, row.metrics},
                                                       {{.token = "gateway", .tenant = "a"}, row.gateway},
                                                       {{.token = "peer"}, row.peer}};
    for (const auto& [credential, expected] : calls) {
      EXPECT_EQ(Call(row, credential), expected) << row.method << " {" << row.request << "} as " << credential.token;
    }
  }
}

TEST_P(RpcTableTest, ACertificateCountsAsItsTenantsUser) {
  if (!tls()) return;  // there are none over plaintext
  SaveSession();
  const CertifiedKey pod = client_ca_.Issue("pod.a");
  const CertifiedKey unknown = client_ca_.Issue("pod.b");
  const CertifiedKey forged = ca_.Issue("pod.a");
  for (const Row& row : kRows) {
    EXPECT_EQ(Call(row, {.certificate = pod}), row.user) << row.method;
    EXPECT_EQ(Call(row, {.certificate = unknown}), StatusCode::UNAUTHENTICATED) << row.method;
    EXPECT_EQ(Call(row, {.token = "expired", .certificate = pod}), StatusCode::UNAUTHENTICATED) << row.method;
  }
  EXPECT_EQ(Call(kRows[0], {.certificate = forged}), StatusCode::UNAVAILABLE);
}

INSTANTIATE_TEST_SUITE_P(Plaintext, RpcTableTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Tls, RpcTableTest, testing::Values(true));

}  // namespace
}  // namespace berth
