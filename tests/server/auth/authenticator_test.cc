#include "server/auth/authenticator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/fake_clock.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

constexpr char kComplete[] = "/berth.v1.Inference/Complete";
constexpr char kGetLoad[] = "/berth.v1.Control/GetLoad";
constexpr char kGetSteps[] = "/berth.v1.Control/GetSteps";

std::string Hash(absl::string_view token) {
  const TokenHash hash = HashToken(token);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(hash.data()), hash.size()));
}

std::string TokenJson(absl::string_view name, absl::string_view more = "") {
  return absl::StrCat(R"({"name": ")", name, R"(", "sha256": ")", Hash(absl::StrCat("secret of ", name)), "\"", more,
                      "}");
}

class AuthenticatorTest : public testing::Test {
 protected:
  // A file with this list of tenants.
  void Open(const std::string& tenants) {
    Write(tenants);
    absl::StatusOr<std::unique_ptr<TenantsFile>> file = TenantsFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    authenticator_ = std::make_unique<Authenticator>(
        Authenticator::Options{.file = file_.get(), .gateway_tenant = "front", .now = [this] { return clock_.Now(); }});
  }
  void Write(const std::string& tenants) {
    std::ofstream(path_, std::ios::trunc) << R"({"tenants": [)" << tenants << "]}";
  }
  void OpenUsual() {
    Open(absl::StrCat(R"({"name": "a", "tokens": [)", TokenJson("plain"), ", ",
                      TokenJson("operator", R"(, "roles": ["operator"])"), ", ",
                      TokenJson("metrics", R"(, "roles": ["metrics"])"), ", ",
                      TokenJson("watcher", R"(, "roles": ["metrics", "operator"])"), ", ",
                      TokenJson("gateway", R"(, "roles": ["gateway"])"), ", ",
                      TokenJson("brief", R"(, "expires": "2001-09-09T01:46:50Z")"),
                      R"(], "certificates": [{"name": "pod", "common_name": "pod.a"},
                                            {"name": "host", "san": "host.a", "roles": ["operator"]}]},
                         {"name": "b"}, {"name": "front"})"));
  }

  // Shows the token "secret of NAME".
  static ShownCredentials Token(absl::string_view name) {
    static std::vector<std::unique_ptr<std::string>> kept;
    kept.push_back(std::make_unique<std::string>(absl::StrCat("Bearer secret of ", name)));
    return {.authorizations = {*kept.back()}};
  }
  grpc::StatusCode Code(absl::string_view method, const ShownCredentials& shown) const {
    return authenticator_->Admit(method, shown).error_code();
  }

  const std::string path_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/tenants.json");
  FakeClock clock_;  // at 2001-09-09T01:46:40Z
  std::unique_ptr<TenantsFile> file_;
  std::unique_ptr<Authenticator> authenticator_;
};

TEST_F(AuthenticatorTest, IsOffWithoutCredentials) {
  Open(R"({"name": "a", "weight": 2})");
  EXPECT_FALSE(authenticator_->on());
  EXPECT_EQ(Code(kGetSteps, {}), grpc::StatusCode::OK);
  EXPECT_EQ(Code("/no/Method", {}), grpc::StatusCode::OK) << "gRPC answers it";
  EXPECT_TRUE(authenticator_->AdmitScrape({}));
  // Such a caller believes that its tenants are kept apart.
  EXPECT_EQ(Code(kComplete, {.tenants = {"a"}}), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AuthenticatorTest, LetsAKnownTokenIn) {
  OpenUsual();
  EXPECT_TRUE(authenticator_->on());
  EXPECT_EQ(Code(kComplete, Token("plain")), grpc::StatusCode::OK);
  EXPECT_EQ(Code(kComplete, {.authorizations = {"bearer secret of plain"}}), grpc::StatusCode::OK);
}

TEST_F(AuthenticatorTest, RefusesMissingBadAndExpiredCredentialsAlike) {
  OpenUsual();
  EXPECT_EQ(Code(kComplete, Token("brief")), grpc::StatusCode::OK);
  clock_.Advance(absl::Seconds(10));
  const ShownCredentials refused[] = {
      {},
      Token("brief"),
      Token("nobody"),
      {.authorizations = {"Bearer "}},
      {.authorizations = {"Bearer"}},
      {.authorizations = {""}},
      {.authorizations = {"secret of plain"}},
      {.authorizations = {"Basic secret of plain"}},
      {.authorizations = {"Bearer  secret of plain"}},
      {.authorizations = {"Bearer secret of plain "}},
      {.authorizations = {"Bearer secret of plain", "Bearer secret of plain"}},
      {.common_names = {"pod.b"}},
      {.common_names = {""}, .sans = {""}},
      {.common_names = {"host.a"}, .sans = {"pod.a"}},  // each where the other belongs
      {.authorizations = {"Bearer wrong"}, .common_names = {"pod.a"}},
  };
  const grpc::Status first = authenticator_->Admit(kComplete, {});
  for (const ShownCredentials& shown : refused) {
    const grpc::Status status = authenticator_->Admit(kComplete, shown);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << shown.authorizations.size();
    EXPECT_EQ(status.error_message(), first.error_message());
    EXPECT_EQ(Code("/no/Method", shown), grpc::StatusCode::UNAUTHENTICATED);
  }
}

TEST_F(AuthenticatorTest, MapsCertificates) {
  OpenUsual();
  EXPECT_EQ(Code(kComplete, {.common_names = {"pod.a"}}), grpc::StatusCode::OK);
  EXPECT_EQ(Code(kGetSteps, {.common_names = {"x"}, .sans = {"other", "host.a"}}), grpc::StatusCode::OK);
  EXPECT_EQ(Code(kGetSteps, {.common_names = {"pod.a"}}), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AuthenticatorTest, NamesMethodAndRolesWhenARoleIsMissing) {
  OpenUsual();
  const grpc::Status status = authenticator_->Admit(kGetSteps, Token("plain"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(status.error_message(),
            "/berth.v1.Control/GetSteps needs one of these roles: operator. The credential \"plain\" has: user");
  EXPECT_EQ(Code(kGetLoad, Token("metrics")), grpc::StatusCode::OK);
  EXPECT_EQ(Code(kComplete, Token("metrics")), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Code("/no/Method", Token("operator")), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(AuthenticatorTest, LetsOnlyGatewaysNameATenant) {
  OpenUsual();
  const auto named = [](ShownCredentials shown, std::vector<absl::string_view> tenants) {
    shown.tenants = std::move(tenants);
    return shown;
  };
  EXPECT_EQ(Code(kComplete, named(Token("gateway"), {"b"})), grpc::StatusCode::OK);
  EXPECT_EQ(Code(kComplete, named(Token("gateway"), {"b", "b"})), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Code(kComplete, named(Token("plain"), {"a"})), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Code(kComplete, named(Token("operator"), {"b"})), grpc::StatusCode::PERMISSION_DENIED);
  const grpc::Status unknown = authenticator_->Admit(kComplete, named(Token("gateway"), {"c\n"}));
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(unknown.error_message(), HasSubstr("there is no tenant \"c\\n\""));
}

TEST_F(AuthenticatorTest, TheGatewayListenerNeedsNoCredentialAndHasOneTenant) {
  OpenUsual();
  EXPECT_EQ(Code(kComplete, {.gateway_listener = true}), grpc::StatusCode::OK);
  EXPECT_EQ(Code(kGetLoad, {.gateway_listener = true}), grpc::StatusCode::OK);
  EXPECT_EQ(Code(kGetSteps, {.gateway_listener = true}), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Code(kComplete, {.gateway_listener = true, .tenants = {"a"}}), grpc::StatusCode::PERMISSION_DENIED);
  // What a gateway passes on from its clients does not count.
  EXPECT_EQ(Code(kGetSteps, {.gateway_listener = true, .authorizations = {"Bearer secret of operator"}}),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AuthenticatorTest, AcceptsNoTokenThatOthersMayHaveRead) {
  OpenUsual();
  ShownCredentials shown = Token("plain");
  EXPECT_EQ(Code(kComplete, shown), grpc::StatusCode::OK);
  shown.in_clear = true;
  EXPECT_EQ(Code(kComplete, shown), grpc::StatusCode::UNAUTHENTICATED);
  Open(R"({"name": "a"})");
  EXPECT_EQ(Code(kComplete, {.in_clear = true}), grpc::StatusCode::OK) << "there is no authentication";
  EXPECT_TRUE(authenticator_->AdmitScrape({}));
}

TEST_F(AuthenticatorTest, ScrapesNeedATokenWhoseOnlyRoleIsMetrics) {
  OpenUsual();
  EXPECT_TRUE(authenticator_->AdmitScrape("Bearer secret of metrics"));
  EXPECT_FALSE(authenticator_->AdmitScrape("Bearer secret of plain"));
  EXPECT_FALSE(authenticator_->AdmitScrape("Bearer secret of operator"));
  EXPECT_FALSE(authenticator_->AdmitScrape("Bearer secret of watcher")) << "others may have read it";
  EXPECT_FALSE(authenticator_->AdmitScrape("Bearer x"));
  EXPECT_FALSE(authenticator_->AdmitScrape({}));
}

TEST_F(AuthenticatorTest, StaysOnWhenTheFileLosesItsCredentials) {
  OpenUsual();
  Write(R"({"name": "a"})");
  ASSERT_TRUE(file_->Reload().ok());
  EXPECT_TRUE(authenticator_->on());
  EXPECT_EQ(Code(kComplete, {}), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Code(kComplete, Token("plain")), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_FALSE(authenticator_->AdmitScrape({}));
}

TEST_F(AuthenticatorTest, TurnsOnWithTheFirstCredential) {
  Open(R"({"name": "a"})");
  Write(absl::StrCat(R"({"name": "a", "tokens": [)", TokenJson("plain"), "]}"));
  ASSERT_TRUE(file_->Reload().ok());
  EXPECT_EQ(Code(kComplete, {}), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Code(kComplete, Token("plain")), grpc::StatusCode::OK);
}

TEST(Credentials, RefusesWhatIsWrongAndNamesIt) {
  const std::string hash = Hash("x");
  const auto token = [](const std::string& fields) {
    return absl::StrCat(R"({"tenants": [{"name": "a", "tokens": [)", fields, "]}]}");
  };
  const auto certificate = [](const std::string& fields) {
    return absl::StrCat(R"({"tenants": [{"name": "a", "certificates": [)", fields, "]}]}");
  };
  const std::pair<std::string, std::string> cases[] = {
      {token(R"({"sha256": "00"})"), "name is missing"},
      {token(absl::StrCat(R"({"name": ")", std::string(129, 'n'), "\"}")), "129 bytes, over the limit of 128"},
      {token(R"({"name": "t"})"), "token \"t\": sha256 is not 64 hexadecimal digits"},
      {token(absl::StrCat(R"({"name": "t", "sha256": ")", hash.substr(1), "\"}")), "sha256"},
      {token(absl::StrCat(R"({"name": "t", "sha256": "z)", hash.substr(1), "\"}")), "sha256"},
      {token(absl::StrCat(R"({"name": "t", "roles": ["root"], "sha256": ")", hash, "\"}")), "role \"root\" is not one"},
      {token(absl::StrCat(R"({"name": "t", "expires": "soon", "sha256": ")", hash, "\"}")), "expires is \"soon\""},
      {token(absl::StrCat(R"({"name": "t", "expires": "2027-01-01", "sha256": ")", hash, "\"}")), "expires is"},
      {token(absl::StrCat(R"({"name": "t", "sha256": ")", hash, R"("}, {"name": "u", "sha256": ")", hash, "\"}")),
       "sha256 is also that of \"t\""},
      {token(absl::StrCat(TokenJson("t"), ", ", R"({"name": "t", "sha256": ")", hash, "\"}")), "the name occurs twice"},
      {certificate(R"({"name": "c"})"), "certificate \"c\": set one of common_name and san"},
      {certificate(R"({"name": "c", "common_name": "x", "san": "y"})"), "set one of"},
      {certificate(R"({"name": "c", "common_name": "x", "roles": [""]})"), "role \"\" is not one"},
      {certificate(R"({"name": "c", "san": "x"}, {"name": "d", "san": "x"})"), "its subject is also that of \"c\""},
  };
  for (const auto& [json, part] : cases) {
    const absl::StatusOr<Tenants> tenants = Tenants::Parse(json);
    EXPECT_EQ(tenants.status().code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(tenants.status().message()), HasSubstr(part));
  }
}

}  // namespace
}  // namespace berth
