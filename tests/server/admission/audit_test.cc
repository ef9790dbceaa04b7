#include "server/admission/audit.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <memory>
#include <sstream>
#include <string>

#include "tests/testing/fake_clock.h"

namespace berth {
namespace {

class AuditTest : public testing::Test {
 protected:
  AuditTest() {
    sink_->set_pattern("%v");
    Audit::Options options;
    options.logger = std::make_shared<spdlog::logger>("audit", sink_);
    options.refusals.now = [this] { return clock_.Now(); };
    options.on_unauthenticated = [this] { ++unauthenticated_; };
    audit_ = std::make_unique<Audit>(std::move(options));
  }
  void Refuse(const std::string& peer) {
    audit_->OnRefused({.peer = peer, .method = "/berth.v1.Inference/Generate"}, absl::UnauthenticatedError("no token"));
  }
  std::string Take() {
    std::string text = text_.str();
    text_.str("");
    return text;
  }

  int unauthenticated_ = 0;
  FakeClock clock_;
  std::ostringstream text_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_ = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
  std::unique_ptr<Audit> audit_;
};

TEST_F(AuditTest, AnOperatorCallIsOneLine) {
  audit_->OnOperatorCall({.peer = "ipv4:10.0.0.1:99", .method = "EraseTenant", .credential = "ops", .tenant = "alice"},
                         absl::OkStatus());
  EXPECT_EQ(Take(),
            "operator call: method=\"EraseTenant\" peer=\"ipv4:10.0.0.1:99\" credential=\"ops\" tenant=\"alice\" "
            "outcome=OK\n");
  audit_->OnOperatorCall({.peer = "ipv4:10.0.0.1:99", .method = "Drain", .credential = "bob"},
                         absl::PermissionDeniedError("Drain requires the role operator"));
  EXPECT_EQ(Take(),
            "operator call: method=\"Drain\" peer=\"ipv4:10.0.0.1:99\" credential=\"bob\" tenant=\"\" "
            "outcome=PERMISSION_DENIED reason=\"Drain requires the role operator\"\n");
}

// Any user may ask for what only an operator may, and must not fill the log.
TEST_F(AuditTest, OneAddressGetsOneLineOfRefusedCallsInTheInterval) {
  const auto call = [&](const absl::Status& outcome) {
    audit_->OnOperatorCall({.peer = "ipv4:10.0.0.1:99", .method = "Abort", .credential = "bob", .tenant = "alice"},
                           outcome);
    return Take();
  };
  const absl::Status refused = absl::PermissionDeniedError("Abort requires the role operator");
  EXPECT_NE(call(refused), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(call(refused), "");
  EXPECT_NE(call(absl::OkStatus()), "") << "each allowed call has its line";
  clock_.Advance(absl::Seconds(10));
  EXPECT_NE(call(refused).find(" unlogged_before=5\n"), std::string::npos);
  EXPECT_EQ(call(absl::InvalidArgumentError("tenant: not yours")), "") << "it is as cheap to ask for";
}

TEST_F(AuditTest, ALongValueIsCut) {
  audit_->OnOperatorCall({.method = "List", .credential = "ops", .tenant = std::string(1 << 20, '\x01')},
                         absl::NotFoundError(std::string(1 << 20, 'x')));
  const std::string line = Take();
  EXPECT_LT(line.size(), 4000U);
  EXPECT_NE(line.find("x...\"\n"), std::string::npos) << line;
}

TEST_F(AuditTest, HostileValuesStayInTheirField) {
  const std::string hostile = "x\" outcome=OK\noperator call: \xe2\x80\xae\xff";
  audit_->OnOperatorCall({.peer = hostile, .method = hostile, .credential = hostile, .tenant = hostile},
                         absl::InvalidArgumentError(hostile));
  const std::string value = "\"x\\\" outcome=OK\\x0aoperator call: \\u202e\\xff\"";
  EXPECT_EQ(Take(), "operator call: method=" + value + " peer=" + value + " credential=" + value + " tenant=" + value +
                        " outcome=INVALID_ARGUMENT reason=" + value + "\n");
}

TEST_F(AuditTest, EachCallWithoutACredentialCounts) {
  for (int i = 0; i < 3; ++i) Refuse("ipv4:10.0.0.1:1");
  EXPECT_EQ(unauthenticated_, 3);
  audit_->OnRefused({.peer = "--listen", .method = "/berth.v1.Control/Drain", .credential = "bob"},
                    absl::PermissionDeniedError("requires the role operator"));
  EXPECT_EQ(unauthenticated_, 3);
}

TEST_F(AuditTest, OneAddressGetsOneLineOfRefusalsInTheInterval) {
  Refuse("ipv4:10.0.0.1:1");
  EXPECT_EQ(Take(),
            "refused credential: method=\"/berth.v1.Inference/Generate\" peer=\"ipv4:10.0.0.1:1\" credential=\"\" "
            "tenant=\"\" outcome=UNAUTHENTICATED reason=\"no token\"\n");
  for (int port = 2; port < 7; ++port) Refuse("ipv4:10.0.0.1:" + std::to_string(port));  // new connections
  EXPECT_EQ(Take(), "");
  Refuse("ipv4:10.0.0.2:1");
  EXPECT_NE(Take(), "");  // another address has lines of its own
  clock_.Advance(absl::Seconds(10));
  Refuse("ipv4:10.0.0.1:1");
  EXPECT_NE(Take().find(" unlogged_before=5\n"), std::string::npos);
  Refuse("ipv4:10.0.0.1:1");
  EXPECT_EQ(Take(), "");
}

}  // namespace
}  // namespace berth
