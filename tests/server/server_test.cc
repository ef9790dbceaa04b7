#include "server/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/control.grpc.pb.h"
#include "berth/v1/inference.grpc.pb.h"
#include "berth/v1/sessions.grpc.pb.h"
#include "client/health.h"
#include "tests/server/seven_server.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

class ServerTest : public testing::Test {
 protected:
  ~ServerTest() override { parts_.runner.SetOpen(true); }

  absl::StatusOr<std::unique_ptr<Server>> StartServer() { return parts_.Start(config_); }

  void SetUp() override { Restart(); }

  void Restart() {
    server_.reset();
    auto server = StartServer();
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials());
  }

  // "SERVING", "NOT_SERVING", or the status code.
  std::string Health(const std::string& name) { return cli::CheckHealth(channel_, name, kHangLimit); }

  grpc::Status Complete(uint32_t max_tokens, v1::GenerateResponse* response = nullptr) {
    return Complete(MakeRequest(max_tokens), response);
  }
  grpc::Status Complete(const v1::GenerateRequest& request, v1::GenerateResponse* response = nullptr) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::GenerateResponse ignored;
    const HangWatch watch("the answer of Complete");
    return v1::Inference::NewStub(channel_)->Complete(&context, request, response != nullptr ? response : &ignored);
  }
  static v1::GenerateRequest MakeRequest(uint32_t max_tokens) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->add_ids(1);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }
  // Its prompt fills blocks of the cache.
  static v1::GenerateRequest MakeRequestOf(const std::string& tenant) {
    v1::GenerateRequest request = MakeRequest(2);
    for (int token = 1; token < 40; ++token) request.mutable_token_ids()->add_ids(token);
    request.set_cache_salt(tenant);
    return request;
  }

  v1::GetLoadResponse Load() {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kHangLimit));
    context.set_wait_for_ready(true);
    v1::GetLoadResponse load;
    EXPECT_TRUE(v1::Control::NewStub(channel_)->GetLoad(&context, {}, &load).ok());
    return load;
  }
  int NumSessions(const std::string& tenant) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kHangLimit));
    v1::ListSessionsRequest request;
    request.set_tenant(tenant);
    v1::ListSessionsResponse response;
    EXPECT_TRUE(v1::Sessions::NewStub(channel_)->List(&context, request, &response).ok());
    return response.sessions_size();
  }

  // Waits until the engine runs `n` requests.
  void WaitForRunning(int64_t n) {
    WaitUntil([this, n] { return Load().running() == n; }, "the number of running requests");
  }

  // Does something while the server drains, for which a request runs; both end well.
  template <typename Use>
  void DuringADrain(const Use& use) {
    parts_.runner.SetOpen(false);
    grpc::Status status;
    std::thread client([&] { status = Complete(5); });
    WaitForRunning(1);
    std::thread drain([&] { server_->Drain(kHangLimit); });
    WaitUntil([this] { return Health("readiness") == "NOT_SERVING"; }, "the drain");
    use();
    parts_.runner.SetOpen(true);
    client.join();
    drain.join();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  // A folder of the test, which does not exist yet.
  static std::string NewFolder(const std::string& name) {
    const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
    std::filesystem::remove_all(folder);
    return folder;
  }
  void SetTenants(const std::string& json) {
    config_.tenants = absl::StrCat(std::getenv("TEST_TMPDIR"), "/quotas.json");
    std::ofstream(config_.tenants, std::ios::trunc) << json;
  }

  Config config_ = SevenConfig();
  SevenParts parts_;
  FakeClock watchdog_clock_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ServerTest, AnOperatorsDrainRefusesNewRequestsAtOnce) {
  parts_.runner.SetOpen(false);
  std::future<grpc::Status> running = std::async(std::launch::async, [this] { return Complete(3); });
  WaitForRunning(1);
  EXPECT_FALSE(server_->draining());
  grpc::ClientContext context;
  v1::DrainResponse response;
  const grpc::Status drained = v1::Control::NewStub(channel_)->Drain(&context, {}, &response);
  ASSERT_TRUE(drained.ok()) << drained.error_message();
  EXPECT_EQ(response.requests(), 1);
  EXPECT_EQ(response.grace_seconds(), absl::ToDoubleSeconds(config_.drain_grace));
  EXPECT_TRUE(server_->draining());
  EXPECT_EQ(Health("readiness"), "NOT_SERVING");
  EXPECT_EQ(Health("liveness"), "SERVING");
  EXPECT_EQ(Complete(1).error_code(), grpc::StatusCode::UNAVAILABLE);
  server_->UpdateHealth();
  EXPECT_EQ(Health("readiness"), "NOT_SERVING");
  parts_.runner.SetOpen(true);
  server_->Drain(kHangLimit);
  const grpc::Status ended = running.get();
  EXPECT_TRUE(ended.ok()) << ended.error_message();
}

TEST_F(ServerTest, DoesNotStartWithATenantsFileThatIsWrong) {
  config_.tenants = absl::StrCat(std::getenv("TEST_TMPDIR"), "/tenants.json");
  std::ofstream(config_.tenants) << R"({"default": {"running_sequences": 0}})";
  const absl::Status status = StartServer().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("default: running_sequences is 0"));

  std::ofstream(config_.tenants, std::ios::trunc) << R"({"default": {"running_sequences": 3}})";
  Restart();
  EXPECT_EQ(server_->tenants()->current()->Of("a").running_sequences(), 3);
}

// Once the file of the tenants has a token.
TEST_F(ServerTest, RefusesCallsWithoutACredential) {
  config_.tenants = absl::StrCat(std::getenv("TEST_TMPDIR"), "/tokens.json");
  std::ofstream(config_.tenants) << R"({"tenants": [{"name": "a", "tokens": [{"name": "t", "sha256":
      "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90"}]}]})";  // of "alice"
  Restart();
  EXPECT_EQ(Complete(1).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Health("liveness"), "UNAUTHENTICATED");
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer alice");
  v1::GenerateResponse response;
  const grpc::Status status = v1::Inference::NewStub(channel_)->Complete(&context, MakeRequest(1), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();

  std::ofstream(config_.tenants, std::ios::trunc) << "{}";
  server_->ReloadChangedFiles();
  EXPECT_EQ(Complete(1).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ServerTest, SessionsKeepToTheirTenantsQuotas) {
  SetTenants(
      R"({"tenants": [{"name": "small", "session_bytes": 1}, {"name": "brief", "session_age_seconds": 0.001}]})");
  config_.sessions.folder = NewFolder("sessions");
  Restart();
  for (const char* tenant : {"small", "brief", "other"}) {
    v1::GenerateRequest request = MakeRequestOf(tenant);
    request.set_session_id("s");
    const grpc::Status status = Complete(request);
    EXPECT_TRUE(status.ok()) << tenant << ": " << status.error_message();
  }
  const auto saved = [this] {
    const v1::GetLoadResponse load = Load();
    return load.session_saves() == 2 && load.failed_session_saves() == 1;
  };
  WaitUntil(saved, "two saves, and one that is refused");
  EXPECT_EQ(NumSessions("small"), 0);
  EXPECT_EQ(NumSessions("other"), 1);
  WaitUntil([this] { return NumSessions("brief") == 0; }, "the session to be too old");
}

TEST_F(ServerTest, PrefixesOnDiskKeepToTheirTenantsQuotas) {
  SetTenants(R"({"tenants": [{"name": "small", "disk_tier_bytes": 1}]})");
  config_.disk_tier.folder = NewFolder("prefixes");
  config_.engine.scheduler.prefixes.idle = absl::ZeroDuration();
  config_.engine.scheduler.swap.host_tier_bytes = 1 << 20;
  config_.engine.scheduler.swap.always_copy = true;
  Restart();
  EXPECT_TRUE(Complete(MakeRequestOf("small")).ok());
  WaitUntil([this] { return Load().host_tier_prefix_bytes() > 0; }, "the prefix to be in host memory");
  EXPECT_EQ(Load().disk_tier_bytes(), 0);
  EXPECT_TRUE(Complete(MakeRequestOf("other")).ok());
  WaitUntil([this] { return Load().disk_tier_bytes() > 0; }, "the prefix of another tenant on disk");
  const int64_t bytes_of_other = Load().disk_tier_bytes();
  EXPECT_TRUE(Complete(MakeRequestOf("brief")).ok());
  WaitUntil([&] { return Load().disk_tier_bytes() > bytes_of_other; }, "the prefix of a third tenant on disk");

  // A server looks for files that are too old at once, and then once a minute.
  SetTenants(R"({"tenants": [{"name": "brief", "disk_tier_age_seconds": 0.001}]})");
  Restart();
  WaitUntil([this] { return Load().tier_disk_evictions() > 0; }, "the file that is too old to go");
  EXPECT_EQ(Load().tier_disk_evictions(), 1);
  EXPECT_GT(Load().disk_tier_bytes(), 0) << "the other tenant's file stays";
}

TEST_F(ServerTest, CountsTheSharesOfTenantsWhereSchedulingIsFair) {
  EXPECT_TRUE(Complete(MakeRequestOf("ann")).ok());
  WaitUntil([this] { return Load().tenant_shares_size() == 1; }, "the share of the tenant");
  EXPECT_EQ(Load().tenant_shares(0).tenant(), "ann");
  EXPECT_EQ(Load().tenant_shares(0).share(), 1);
  config_.fair_scheduling = false;
  Restart();
  EXPECT_TRUE(Complete(MakeRequestOf("ann")).ok());
  EXPECT_EQ(Load().tenant_shares_size(), 0);
}

TEST_F(ServerTest, ServesAndSaysSo) {
  config_.metrics_listen = Address{"127.0.0.1", 0};
  Restart();
  for (const char* name : {"", "liveness", "readiness", "berth.v1.Inference", "berth.v1.Control"}) {
    EXPECT_EQ(Health(name), "SERVING") << name;
  }
  EXPECT_EQ(Health("no.such.Service"), "NOT_FOUND");
  v1::GenerateResponse response;
  const grpc::Status status = Complete(3, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.token_ids(), testing::ElementsAre(7, 7, 7));
  EXPECT_GT(server_->metrics_port(), 0);
  EXPECT_EQ(server_->max_sequence_tokens(), 1000);
}

TEST_F(ServerTest, GetModelInfoTellsEveryLimit) {
  config_.limits.default_max_tokens = 5;
  Restart();
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  v1::GetModelInfoResponse info;
  const grpc::Status status = v1::Control::NewStub(channel_)->GetModelInfo(&context, {}, &info);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const google::protobuf::Reflection& fields = *info.limits().GetReflection();
  for (int i = 0; i < v1::Limits::descriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *v1::Limits::descriptor()->field(i);
    // Its model has no encoder.
    EXPECT_EQ(fields.GetInt64(info.limits(), &field) > 0, field.name() != "max_encoder_tokens") << field.name();
  }
}

TEST_F(ServerTest, ReflectionIsServed) {
  // ServerReflectionRequest { string list_services = 7; }, by hand; the answer names the services in clear.
  grpc::ClientContext context;
  grpc::GenericStub stub(channel_);
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(next());
  const grpc::Slice list_services(std::string("\x3a\x01*", 3));
  call->WriteLast(grpc::ByteBuffer(&list_services, 1), {}, nullptr);
  ASSERT_TRUE(next());
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  ASSERT_TRUE(next());
  grpc::Slice slice;
  ASSERT_TRUE(answer.DumpToSingleSlice(&slice).ok());
  const std::string text(slice.begin(), slice.end());
  EXPECT_THAT(text, HasSubstr("berth.v1.Inference"));
  EXPECT_THAT(text, HasSubstr("grpc.health.v1.Health"));
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(next());
}

TEST_F(ServerTest, DrainLetsRequestsEnd) {
  DuringADrain([&] {
    EXPECT_EQ(Health("berth.v1.Inference"), "NOT_SERVING");
    EXPECT_EQ(Health(""), "SERVING");
    EXPECT_EQ(Health("liveness"), "SERVING");
    // Readiness falls a moment before the engine refuses. A request that comes before that waits.
    grpc::Status refused;
    TryLonger(
        [&](absl::Duration time) {
          grpc::ClientContext context;
          context.set_deadline(absl::ToChronoTime(absl::Now() + time));
          v1::GenerateResponse response;
          refused = v1::Inference::NewStub(channel_)->Complete(&context, MakeRequest(1), &response);
          return refused.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED;
        },
        "a refusal before the deadline");
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE) << refused.error_message();
  });
}

TEST_F(ServerTest, ADrainReadsFilesThatChange) {
  SetTenants(R"({"default": {"running_sequences": 1}})");
  Restart();
  DuringADrain([&] {
    SetTenants(R"({"default": {"running_sequences": 23}})");
    WaitUntil([this] { return server_->tenants()->current()->Of("a").running_sequences() == 23; }, "the new limits");
  });
}

TEST_F(ServerTest, WhatTheGraceDoesNotCoverEndsUnavailable) {
  grpc::Status status;
  std::atomic<bool> ended = false;
  parts_.runner.SetOpen(false);
  std::thread client([&] {
    status = Complete(900);
    ended = true;
  });
  WaitForRunning(1);
  std::thread drain([&] { server_->Drain(absl::ZeroDuration()); });
  // The request ends after the step in which it is told to. That comes long before its last step: they get slower.
  for (int step = 0; !ended && step < 900; ++step) {
    parts_.runner.AllowStep();
    absl::SleepFor(absl::Milliseconds(step < 100 ? 10 : 100));
  }
  parts_.runner.SetOpen(true);
  drain.join();
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

// The engine does not know of such a request, and is idle.
TEST_F(ServerTest, DrainEndsWhatWaitsForItsGrammar) {
  std::promise<void> compiles;
  parts_.compile_grammar = [&compiles](const GrammarSpec&, std::stop_token stop) -> absl::StatusOr<CompiledGrammar> {
    compiles.set_value();
    std::promise<void> stopped;
    const std::stop_callback on_stop(stop, [&stopped] { stopped.set_value(); });
    stopped.get_future().wait();
    return absl::CancelledError("stopped");
  };
  config_.grammars.timeout = absl::Hours(1);
  Restart();
  v1::GenerateRequest request = MakeRequest(5);
  request.mutable_structure()->set_regex("a");
  grpc::Status status;
  std::thread client([&] {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::GenerateResponse response;
    status = v1::Inference::NewStub(channel_)->Complete(&context, request, &response);
  });
  compiles.get_future().wait();
  server_->Drain(kHangLimit);
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(status.error_message(), "the server shut down after 0 tokens");
}

TEST_F(ServerTest, ADeadEngineFailsLiveness) {
  parts_.runner.Fail(absl::InternalError("the device is lost"));
  for (int i = 0; i < 20 && Complete(2).error_code() != grpc::StatusCode::UNAVAILABLE; ++i) {
  }
  server_->UpdateHealth();
  for (const char* name : {"", "liveness", "readiness", "berth.v1.Inference"}) {
    EXPECT_EQ(Health(name), "NOT_SERVING") << name;
  }
}

TEST_F(ServerTest, AHangingStepFailsLivenessUntilItGoesOn) {
  std::promise<std::string> hung;
  std::atomic<bool> told = false;
  config_.watchdog = {.timeout = absl::Milliseconds(20),
                      .on_hang =
                          [&](const std::string& where) {
                            if (!told.exchange(true)) hung.set_value(where);
                          },
                      .now = [this] { return watchdog_clock_.Now(); }};
  Restart();
  parts_.runner.SetOpen(false);
  std::future<grpc::Status> call = std::async(std::launch::async, [this] { return Complete(3); });
  WaitUntil([this] { return parts_.runner.num_begun() == 1; }, "the step");
  // One wake-up of the watchdog, or none if it is late.
  const auto tick = [this] { watchdog_clock_.Advance(absl::Milliseconds(1)); };
  WaitUntil(
      [&] {
        tick();
        return told.load();
      },
      "the watchdog");
  EXPECT_THAT(hung.get_future().get(), HasSubstr("phase run, 1 rows, 1 tokens, in "));
  server_->UpdateHealth();
  EXPECT_EQ(Health("liveness"), "NOT_SERVING");
  EXPECT_EQ(Health("readiness"), "NOT_SERVING");
  parts_.runner.SetOpen(true);
  EXPECT_TRUE(call.get().ok());
  WaitUntil(
      [&] {
        tick();
        server_->UpdateHealth();
        return Health("liveness") == "SERVING";
      },
      "the watchdog's next wake-up");
  EXPECT_EQ(Health("readiness"), "SERVING");
}

TEST_F(ServerTest, ATakenPortIsAnErrorThatNamesIt) {
  config_.metrics_listen = Address{"127.0.0.1", 0};
  Restart();
  config_.listen.port = server_->port();
  const auto second = StartServer();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(config_.listen.ToString()));
  config_.listen.port = 0;
  config_.metrics_listen->port = server_->metrics_port();
  const auto third = StartServer();
  EXPECT_EQ(third.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr(config_.metrics_listen->ToString()));
}

TEST_F(ServerTest, AnArenaThatHoldsNoSequenceIsAnError) {
  server_.reset();
  parts_.storage = *CreateHostStorage(parts_.plan.groups[0].unit_bytes);
  EXPECT_FALSE(StartServer().ok());
}

}  // namespace
}  // namespace berth
