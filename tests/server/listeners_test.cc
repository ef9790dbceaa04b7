// A whole server behind TLS, Unix sockets and the other listeners, as clients see it.
#include "server/listeners.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "berth/v1/control.grpc.pb.h"
#include "berth/v1/inference.grpc.pb.h"
#include "berth/v1/sessions.grpc.pb.h"
#include "client/connection.h"
#include "client/health.h"
#include "tests/server/seven_server.h"
#include "tests/testing/certificates.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kServerSan[] = "DNS:localhost,IP:127.0.0.1";
constexpr auto kDeadline = std::chrono::minutes(2);

int ConnectTcp(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// The answer to GET /metrics.
std::string Scrape(int port, const std::string& headers = "") {
  const int fd = ConnectTcp(port);
  const std::string request =
      absl::StrCat("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", headers, "\r\n");
  EXPECT_EQ(::write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
  ::close(fd);
  return answer;
}

// A context that allows TLS 1.0 and later, as OpenSSL does not by itself.
SSL_CTX* OldContext(const SSL_METHOD* method, int max_version) {
  SSL_CTX* const context = SSL_CTX_new(method);
  SSL_CTX_set_security_level(context, 0);
  SSL_CTX_set_min_proto_version(context, TLS1_VERSION);
  SSL_CTX_set_max_proto_version(context, max_version);
  SSL_CTX_set_cipher_list(context, "ALL:@SECLEVEL=0");
  return context;
}

// Shakes hands with the port. Returns the common name of the server's certificate, or the reason of the failure.
std::string ShakeHands(int port, int max_version) {
  SSL_CTX* const context = OldContext(TLS_client_method(), max_version);
  SSL* const ssl = SSL_new(context);
  const unsigned char alpn[] = "\x02h2";
  SSL_set_alpn_protos(ssl, alpn, 3);
  const int fd = ConnectTcp(port);
  SSL_set_fd(ssl, fd);
  ERR_clear_error();
  char name[64] = "";
  if (SSL_connect(ssl) == 1) {
    X509* const cert = SSL_get1_peer_certificate(ssl);
    X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, name, sizeof(name));
    X509_free(cert);
  }
  const char* const reason = ERR_reason_error_string(ERR_peek_error());
  const std::string result = name[0] != '\0' || reason == nullptr ? name : reason;
  ERR_clear_error();
  SSL_free(ssl);
  SSL_CTX_free(context);
  ::close(fd);
  return result;
}

class ListenersTest : public testing::Test {
 protected:
  ListenersTest() {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    WritePair(ca_.Issue("first", kServerSan));
    Write("client_ca", client_ca_.cert());
  }
  ~ListenersTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name) + "_tmp", std::ios::trunc) << text;
    std::filesystem::rename(Path(name) + "_tmp", Path(name));
  }
  void WritePair(const CertifiedKey& pair) const {
    Write("key", pair.key);
    Write("cert", pair.cert);
  }
  void UseTls() { config_.tls = {.cert = Path("cert"), .key = Path("key")}; }
  void UseMutualTls() {
    UseTls();
    config_.tls.client_ca = Path("client_ca");
  }
  // The file of --tenants: "a" with these fields, and "b".
  void UseTenants(const std::string& fields) {
    Write("tenants", absl::StrCat(R"({"tenants": [{"name": "b"}, {"name": "a", )", fields, "}]}"));
    config_.tenants = Path("tenants");
  }
  void UseToken() { UseTenants(absl::StrCat(R"("tokens": [)", SecretToken("t"), "]")); }

  void Start() {
    server_.reset();
    absl::StatusOr<std::unique_ptr<Server>> server = parts_.Start(config_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string StartError() { return std::string(parts_.Start(config_).status().message()); }

  // To --listen, each with a connection of its own.
  std::shared_ptr<grpc::Channel> Channel(std::shared_ptr<grpc::ChannelCredentials> credentials) const {
    return ChannelTo(absl::StrCat("127.0.0.1:", server_->port()), std::move(credentials));
  }
  static std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address,
                                                  std::shared_ptr<grpc::ChannelCredentials> credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address, std::move(credentials), arguments);
  }
  std::shared_ptr<grpc::Channel> Tls(const CertifiedKey& client = {}) const {
    return Channel(grpc::SslCredentials({ca_.cert(), client.key, client.cert}));
  }
  std::shared_ptr<grpc::Channel> Plaintext() const { return Channel(grpc::InsecureChannelCredentials()); }

  // Calls Complete with the token "secret-of-`token`", for the tenant `salt`. "": none.
  static grpc::Status Complete(const std::shared_ptr<grpc::Channel>& channel, const std::string& token = "",
                               const std::string& salt = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    if (!token.empty()) context.AddMetadata("authorization", "Bearer secret-of-" + token);
    v1::GenerateRequest request;
    request.mutable_token_ids()->add_ids(1);
    request.mutable_stopping()->set_max_tokens(2);
    if (!salt.empty()) request.set_cache_salt(salt);
    v1::GenerateResponse response;
    const grpc::Status status = v1::Inference::NewStub(channel)->Complete(&context, request, &response);
    EXPECT_EQ(response.token_ids_size(), status.ok() ? 2 : 0);
    return status;
  }
  static grpc::StatusCode Code(const std::shared_ptr<grpc::Channel>& channel, const std::string& token = "") {
    return Complete(channel, token).error_code();
  }
  static grpc::StatusCode GetSteps(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    v1::GetStepsResponse steps;
    return v1::Control::NewStub(channel)->GetSteps(&context, {}, &steps).error_code();
  }

  std::string folder_ = "/tmp/berth-tls-XXXXXX";  // short, for Unix sockets
  const TestCa ca_{"server CA"};
  const TestCa client_ca_{"client CA"};
  Config config_ = SevenConfig();
  SevenParts parts_;
  std::unique_ptr<Server> server_;
};

TEST_F(ListenersTest, OverTlsATokenIsNeeded) {
  UseTls();
  UseToken();
  Start();
  EXPECT_EQ(Code(Tls(), "t"), grpc::StatusCode::OK);
  EXPECT_EQ(Code(Tls(), "x"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Code(Tls()), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Code(Plaintext(), "t"), grpc::StatusCode::UNAVAILABLE);
  // A server of another CA.
  EXPECT_EQ(Code(Channel(grpc::SslCredentials({client_ca_.cert(), "", ""})), "t"), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ListenersTest, MutualTlsAloneRequiresACertificateOfTheCa) {
  UseMutualTls();
  Start();
  EXPECT_EQ(Code(Tls(client_ca_.Issue("anybody"))), grpc::StatusCode::OK);
  EXPECT_EQ(Code(Tls()), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Code(Tls(ca_.Issue("of another CA"))), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ListenersTest, WithCredentialsACertificateOrATokenIsNeeded) {
  UseMutualTls();
  UseTenants(
      absl::StrCat(R"("tokens": [)", SecretToken("t"), R"(], "certificates": [{"name": "c", "common_name": "pod.a"},
      {"name": "d", "san": "spiffe://cluster/a", "roles": ["operator"]}])"));
  Start();
  EXPECT_EQ(Code(Tls(client_ca_.Issue("pod.a"))), grpc::StatusCode::OK);
  EXPECT_EQ(Code(Tls(), "t"), grpc::StatusCode::OK);
  EXPECT_EQ(Code(Tls()), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Code(Tls(client_ca_.Issue("pod.b"))), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Code(Tls(ca_.Issue("pod.a"))), grpc::StatusCode::UNAVAILABLE) << "of another CA";
  EXPECT_EQ(Code(Tls(ca_.Issue("pod.a")), "t"), grpc::StatusCode::UNAVAILABLE) << "of another CA";
  // The tenant is the credential's.
  EXPECT_EQ(Complete(Tls(client_ca_.Issue("pod.a")), "", "a").error_code(), grpc::StatusCode::OK);
  EXPECT_THAT(Complete(Tls(client_ca_.Issue("pod.a")), "", "b").error_message(),
              HasSubstr("\"b\" is not the tenant of the credential, \"a\""));
  EXPECT_EQ(GetSteps(Tls(client_ca_.Issue("pod.a"))), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(GetSteps(Tls(client_ca_.Issue("any", "URI:spiffe://cluster/a"))), grpc::StatusCode::OK);
}

TEST_F(ListenersTest, RefusesTls11) {
  UseTls();
  UseToken();
  Start();
  EXPECT_EQ(ShakeHands(server_->port(), TLS1_3_VERSION), "first");
  EXPECT_EQ(ShakeHands(server_->port(), TLS1_2_VERSION), "first");
  testing::internal::CaptureStdout();
  EXPECT_EQ(ShakeHands(server_->port(), TLS1_1_VERSION), "unexpected eof while reading");
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("SSL routines::unsupported protocol"));
}

// What the test above rests on: its client does speak TLS 1.1, to a server that allows it.
TEST_F(ListenersTest, AnotherServerAcceptsTls11) {
  SSL_CTX* const server_context = OldContext(TLS_server_method(), TLS1_1_VERSION);
  SSL_CTX_use_certificate_file(server_context, Path("cert").c_str(), SSL_FILETYPE_PEM);
  SSL_CTX_use_PrivateKey_file(server_context, Path("key").c_str(), SSL_FILETYPE_PEM);
  SSL_CTX* const client_context = OldContext(TLS_client_method(), TLS1_1_VERSION);
  SSL* const server = SSL_new(server_context);
  SSL* const client = SSL_new(client_context);
  BIO* client_end = nullptr;
  BIO* server_end = nullptr;
  BIO_new_bio_pair(&client_end, 0, &server_end, 0);
  SSL_set_bio(client, client_end, client_end);
  SSL_set_bio(server, server_end, server_end);
  bool done = false;
  for (int i = 0; i < 10 && !done; ++i) {
    const int connected = SSL_connect(client);
    done = SSL_accept(server) == 1 && connected == 1;
  }
  EXPECT_TRUE(done);
  EXPECT_STREQ(SSL_get_version(client), "TLSv1.1");
  SSL_free(client);
  SSL_free(server);
  SSL_CTX_free(client_context);
  SSL_CTX_free(server_context);
}

TEST_F(ListenersTest, ServesThePairThatReplacesTheFirst) {
  UseTls();
  UseToken();
  Start();
  const std::shared_ptr<grpc::Channel> before = Tls();
  EXPECT_EQ(Code(before, "t"), grpc::StatusCode::OK);
  EXPECT_EQ(ShakeHands(server_->port(), TLS1_3_VERSION), "first");
  WritePair(ca_.Issue("second", kServerSan));
  server_->ReloadChangedFiles();
  EXPECT_EQ(ShakeHands(server_->port(), TLS1_3_VERSION), "second");
  EXPECT_EQ(Code(before, "t"), grpc::StatusCode::OK);
  EXPECT_EQ(Code(Tls(), "t"), grpc::StatusCode::OK);
}

TEST_F(ListenersTest, KeepsThePairWhenItsFilesGoWrong) {
  UseTls();
  UseToken();
  Start();
  const CertifiedKey second = ca_.Issue("second", kServerSan);
  const CertifiedKey bad[] = {{second.cert, ca_.Issue("third").key}, {"", ""}, {second.cert, "nonsense"}};
  for (const CertifiedKey& pair : bad) {
    WritePair(pair);
    server_->ReloadChangedFiles();
    EXPECT_EQ(ShakeHands(server_->port(), TLS1_3_VERSION), "first");
    EXPECT_EQ(Code(Tls(), "t"), grpc::StatusCode::OK);
  }
  WritePair(second);
  server_->ReloadChangedFiles();
  EXPECT_EQ(ShakeHands(server_->port(), TLS1_3_VERSION), "second");
}

TEST_F(ListenersTest, ANewCaOfClientsReplacesTheFormerOne) {
  UseMutualTls();
  Start();
  const TestCa next("next client CA");
  EXPECT_EQ(Code(Tls(next.Issue("x"))), grpc::StatusCode::UNAVAILABLE);
  Write("client_ca", next.cert());
  server_->ReloadChangedFiles();
  EXPECT_EQ(Code(Tls(next.Issue("x"))), grpc::StatusCode::OK);
  EXPECT_EQ(Code(Tls(client_ca_.Issue("x"))), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ListenersTest, DoesNotStartWithAPairThatIsWrong) {
  UseTls();
  Write("key", ca_.Issue("other").key);
  EXPECT_EQ(StartError(), absl::StrCat("--tls_key: ", Path("key"), " is not the key of the certificate in --tls_cert, ",
                                       Path("cert")));
  std::filesystem::remove(Path("cert"));
  EXPECT_EQ(StartError(), absl::StrCat("--tls_cert: ", Path("cert"), " cannot be read: No such file or directory"));
}

TEST_F(ListenersTest, DoesNotStartOpenToTheNetworkUnlessInsecure) {
  config_.listen.host = "0.0.0.0";
  EXPECT_THAT(StartError(), HasSubstr("or set --insecure if this is meant"));
  config_.insecure = true;
  Start();
  EXPECT_EQ(Code(Plaintext()), grpc::StatusCode::OK);
  // A token that comes later must not be shown here.
  UseToken();
  EXPECT_THAT(StartError(), HasSubstr("takes them from the network in plaintext"));
}

TEST_F(ListenersTest, ATokenThatComesLaterIsNotAcceptedInPlaintextFromTheNetwork) {
  config_.listen.host = "0.0.0.0";
  config_.insecure = true;
  UseTenants(R"("weight": 1)");
  Start();
  EXPECT_EQ(Code(Plaintext()), grpc::StatusCode::OK);
  UseToken();
  testing::internal::CaptureStdout();
  server_->ReloadChangedFiles();
  server_->ReloadChangedFiles();
  const std::string log = testing::internal::GetCapturedStdout();
  EXPECT_THAT(log, HasSubstr("in plaintext: set --tls_cert"));
  EXPECT_THAT(log, HasSubstr("callers are refused until a restart"));
  EXPECT_EQ(Code(Plaintext(), "t"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Code(Plaintext()), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ListenersTest, TokensChangeWhileItRuns) {
  UseTls();
  UseToken();
  Start();
  const std::shared_ptr<grpc::Channel> channel = Tls();
  EXPECT_EQ(Code(channel, "u"), grpc::StatusCode::UNAUTHENTICATED);
  UseTenants(absl::StrCat(R"("tokens": [)", SecretToken("u"), "]"));
  server_->ReloadChangedFiles();
  EXPECT_EQ(Code(channel, "u"), grpc::StatusCode::OK);
  EXPECT_EQ(Code(channel, "t"), grpc::StatusCode::UNAUTHENTICATED);
  Write("tenants", "nonsense");
  server_->ReloadChangedFiles();
  EXPECT_EQ(Code(channel, "u"), grpc::StatusCode::OK) << "the former tokens stay";
  EXPECT_EQ(Code(channel, "t"), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ListenersTest, ListensOnAUnixSocket) {
  config_.listen = {.socket_path = Path("socket")};
  UseToken();
  Start();
  EXPECT_EQ(server_->port(), 0);
  const auto channel = ChannelTo("unix:" + Path("socket"), grpc::InsecureChannelCredentials());
  EXPECT_EQ(Code(channel, "t"), grpc::StatusCode::OK);
  EXPECT_EQ(Code(channel), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ListenersTest, TheGatewaysCallsAreThoseOfOneTenant) {
  UseToken();
  config_.gateway_tenant = "front";
  for (const Address& address : {Address{"127.0.0.1", 0}, Address{.socket_path = Path("gateway")}}) {
    config_.gateway_listen = address;
    Start();
    EXPECT_EQ(Code(Plaintext()), grpc::StatusCode::UNAUTHENTICATED);
    const auto channel = ChannelTo(server_->listeners().gateway().ToString(), grpc::InsecureChannelCredentials());
    EXPECT_EQ(Code(channel), grpc::StatusCode::OK);
    EXPECT_EQ(Complete(channel, "", "front").error_code(), grpc::StatusCode::OK);
    EXPECT_THAT(Complete(channel, "", "a").error_message(),
                HasSubstr("\"a\" is not the tenant of the credential, \"front\""));
    EXPECT_THAT(Complete(channel, "t", "a").error_message(), HasSubstr("\"front\"")) << "what it passes on is ignored";
    EXPECT_EQ(GetSteps(channel), grpc::StatusCode::PERMISSION_DENIED);
    grpc::ClientContext context;
    context.AddMetadata("berth-tenant", "a");
    v1::GetModelInfoResponse info;
    EXPECT_EQ(v1::Control::NewStub(channel)->GetModelInfo(&context, {}, &info).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
}

TEST_F(ListenersTest, TheGatewaysTenantIsBoundWithoutAuthenticationToo) {
  config_.gateway_tenant = "front";
  config_.gateway_listen = Address{"127.0.0.1", 0};
  Start();
  EXPECT_EQ(Complete(Plaintext(), "", "a").error_code(), grpc::StatusCode::OK);
  const auto channel = ChannelTo(server_->listeners().gateway().ToString(), grpc::InsecureChannelCredentials());
  EXPECT_EQ(Complete(channel, "", "a").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ListenersTest, TheHealthListenerAnswersHealthAlone) {
  UseMutualTls();
  UseToken();
  config_.reflection = "on";
  config_.health_listen = Address{"0.0.0.0", 0};
  Start();
  const auto channel =
      ChannelTo(absl::StrCat("127.0.0.1:", server_->listeners().health().port), grpc::InsecureChannelCredentials());
  for (const char* name : {"", "liveness", "readiness"}) {
    EXPECT_EQ(cli::CheckHealth(channel, name, absl::Minutes(2)), "SERVING") << name;
  }
  EXPECT_EQ(Code(channel), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Code(channel, "t"), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(GetSteps(channel), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(cli::CheckHealth(Tls(), "", absl::Minutes(2)), "UNAUTHENTICATED");
}

TEST_F(ListenersTest, MetricsNeedATokenWhereTheNetworkReachesThem) {
  UseTenants(
      absl::StrCat(R"("tokens": [)", SecretToken("t"), ", ", SecretToken("m", R"(, "roles": ["metrics"])"), "]"));
  config_.metrics_listen = Address{"127.0.0.1", 0};
  Start();
  EXPECT_THAT(Scrape(server_->metrics_port()), StartsWith("HTTP/1.1 200"));
  config_.metrics_listen = Address{"0.0.0.0", 0};
  Start();
  EXPECT_THAT(Scrape(server_->metrics_port()), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Scrape(server_->metrics_port(), "Authorization: Bearer secret-of-t\r\n"), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Scrape(server_->metrics_port(), "Authorization: Bearer secret-of-m\r\n"),
              testing::AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("berth_requests_running")));
  config_.tenants = "";
  EXPECT_THAT(StartError(), HasSubstr("--metrics_listen: 0.0.0.0:0: the network can read the metrics"));
  config_.insecure = true;
  Start();
  EXPECT_THAT(Scrape(server_->metrics_port()), StartsWith("HTTP/1.1 200"));
}

// As berth-cli does.
TEST_F(ListenersTest, TheClientShowsItsTokenOverTlsAndToThisMachine) {
  Write("token", "secret-of-t\n");
  const auto error = [](const cli::ConnectionOptions& options) {
    return std::string(cli::Connect(options).status().message());
  };
  EXPECT_THAT(error({.server = "berth.example:8600", .token_file = Path("token")}),
              HasSubstr("--token_file: others could read the token on its way to berth.example:8600; set --tls_ca"));
  EXPECT_THAT(error({.token_file = Path("none")}), HasSubstr("--token_file: cannot read"));
  EXPECT_THAT(error({.tls_ca = Path("none")}), HasSubstr("--tls_ca: cannot read"));
  EXPECT_EQ(error({.tls_ca = Path("cert"), .tls_cert = Path("cert")}), "--tls_cert: requires --tls_key");
  EXPECT_EQ(error({.tls_cert = Path("cert"), .tls_key = Path("key")}), "--tls_cert: requires --tls_ca");
  Write("two words", "a b");
  EXPECT_THAT(error({.token_file = Path("two words")}), HasSubstr("is not a token"));

  UseToken();
  Start();
  EXPECT_EQ(Code(*cli::Connect({.server = absl::StrCat("127.0.0.1:", server_->port()), .token_file = Path("token")})),
            grpc::StatusCode::OK);
  config_.listen = {.socket_path = Path("socket")};
  Start();
  EXPECT_EQ(Code(*cli::Connect({.server = "unix:" + Path("socket"), .token_file = Path("token")})),
            grpc::StatusCode::OK);
  config_.listen = {"127.0.0.1", 0};
  UseMutualTls();
  Write("ca", ca_.cert());
  Start();
  cli::ConnectionOptions options = {.server = absl::StrCat("127.0.0.1:", server_->port()), .tls_ca = Path("ca")};
  EXPECT_EQ(Code(*cli::Connect(options)), grpc::StatusCode::UNAUTHENTICATED);
  options.token_file = Path("token");
  EXPECT_EQ(Code(*cli::Connect(options)), grpc::StatusCode::OK);
  const CertifiedKey client = client_ca_.Issue("anybody");
  Write("client_cert", client.cert);
  Write("client_key", client.key);
  options.token_file = "";
  options.tls_cert = Path("client_cert");
  options.tls_key = Path("client_key");
  config_.tenants = "";
  Start();
  options.server = absl::StrCat("127.0.0.1:", server_->port());
  EXPECT_EQ(Code(*cli::Connect(options)), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace berth
