#include "server/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Credentials Read(const std::string& fields) {
  const absl::StatusOr<Tenants> tenants = Tenants::Parse(absl::StrCat(R"({"tenants": [{"name": "a", )", fields, "}]}"));
  EXPECT_TRUE(tenants.ok()) << tenants.status();
  return tenants->credentials();
}
Credentials Tokens() {
  return Read(absl::StrCat(R"("tokens": [{"name": "t", "sha256": ")", std::string(64, 'a'), R"("}])"));
}
Credentials Certificates() { return Read(R"("certificates": [{"name": "c", "common_name": "x"}])"); }

// What the network can reach, and how.
Config Listening(const char* address, bool tls = false, bool client_ca = false) {
  Config config;
  config.listen = *ParseAddress(address);
  config.metrics_listen = std::nullopt;
  config.tenants = "/tenants";
  if (tls) config.tls = {.cert = "/cert", .key = "/key"};
  if (client_ca) config.tls.client_ca = "/ca";
  return config;
}

std::string Error(const Config& config, const Credentials& credentials) {
  return std::string(CheckAccess(config, credentials).message());
}

constexpr char kNetwork[] = "0.0.0.0:8600";

TEST(Access, WhatOnlyThisMachineReachesMayBeOpen) {
  for (const char* address : {"127.0.0.1:8600", "localhost:8600", "[::1]:8600", "unix:/run/berth.sock"}) {
    EXPECT_EQ(Error(Listening(address), {}), "");
    EXPECT_EQ(Error(Listening(address), Tokens()), "");
    EXPECT_THAT(DescribeOpenings(Listening(address), {}), IsEmpty());
  }
}

TEST(Access, WhatTheNetworkReachesIsClosedOrInsecure) {
  struct Row {
    Config config;
    Credentials credentials;
    bool open;
  };
  const Row rows[] = {{Listening(kNetwork), {}, true},
                      {Listening("berth.example:8600"), {}, true},
                      {Listening(kNetwork, /*tls=*/true), {}, true},
                      {Listening(kNetwork, /*tls=*/true), Tokens(), false},
                      {Listening(kNetwork, /*tls=*/true, /*client_ca=*/true), {}, false},
                      {Listening(kNetwork, /*tls=*/true, /*client_ca=*/true), Tokens(), false},
                      {Listening(kNetwork, /*tls=*/true, /*client_ca=*/true), Certificates(), false}};
  for (const Row& row : rows) {
    const absl::Status status = CheckAccess(row.config, row.credentials);
    EXPECT_EQ(status.ok(), !row.open) << status;
    EXPECT_EQ(DescribeOpenings(row.config, row.credentials).size(), row.open ? 1u : 0u);
    if (!row.open) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    for (const char* part : {"--listen: ", "--tls_client_ca", "--tenants", "--insecure"}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
    Config insecure = row.config;
    insecure.insecure = true;
    EXPECT_EQ(Error(insecure, row.credentials), "");
  }
}

TEST(Access, TheLogSaysWhatInsecureOpens) {
  EXPECT_THAT(DescribeOpenings(Listening(kNetwork), {}),
              ElementsAre("--insecure: the network can use the server without a credential, and read along, by "
                          "--listen=0.0.0.0:8600"));
  EXPECT_THAT(DescribeOpenings(Listening(kNetwork, /*tls=*/true), {}),
              ElementsAre("--insecure: the network can use the server without a credential, by --listen=0.0.0.0:8600"));
}

TEST(Access, TokensDoNotCrossTheNetworkInPlaintextEvenIfInsecure) {
  Config config = Listening(kNetwork);
  for (const bool insecure : {false, true}) {
    config.insecure = insecure;
    EXPECT_EQ(Error(config, Tokens()),
              "--tenants: /tenants has tokens, and --listen=0.0.0.0:8600 takes them from the network in plaintext: set "
              "--tls_cert and --tls_key, or listen on a loopback address or a Unix socket");
  }
}

TEST(Access, CertificatesNeedACa) {
  EXPECT_EQ(Error(Listening("127.0.0.1:8600", /*tls=*/true), Certificates()),
            "--tenants: /tenants has certificates, which need --tls_client_ca");
}

TEST(Access, MetricsOnTheNetworkNeedATokenOrInsecure) {
  Config config = Listening("127.0.0.1:8600");
  config.metrics_listen = *ParseAddress("0.0.0.0:8601");
  EXPECT_THAT(Error(config, {}), HasSubstr("--metrics_listen: 0.0.0.0:8601: the network can read the metrics"));
  EXPECT_EQ(Error(config, Tokens()), "");
  config.insecure = true;
  EXPECT_EQ(Error(config, {}), "");
  EXPECT_THAT(DescribeOpenings(config, {}),
              ElementsAre(HasSubstr("read the metrics without a token, by --metrics_listen=0.0.0.0:8601")));
}

TEST(Access, HealthOnTheNetworkIsNoOpening) {
  Config config = Listening("127.0.0.1:8600");
  config.health_listen = *ParseAddress("0.0.0.0:8603");
  EXPECT_EQ(Error(config, {}), "");
}

TEST(Access, ACertificateIsRequiredWhereNothingElseNamesTheCaller) {
  EXPECT_TRUE(RequiresCertificate(Listening(kNetwork, true, true), {}));
  EXPECT_FALSE(RequiresCertificate(Listening(kNetwork, true, true), Tokens()));
  EXPECT_FALSE(RequiresCertificate(Listening(kNetwork, true, true), Certificates()));
  EXPECT_FALSE(RequiresCertificate(Listening(kNetwork, true), {}));
  EXPECT_EQ(DescribeAccess(Listening(kNetwork, true, true), {}), "TLS; clients need a certificate of --tls_client_ca");
  EXPECT_EQ(DescribeAccess(Listening(kNetwork, true, true), Tokens()), "TLS; callers need a credential of --tenants");
  EXPECT_EQ(DescribeAccess(Listening("127.0.0.1:1"), {}), "plaintext; callers need no credential");
}

}  // namespace
}  // namespace berth
