// Refusals as clients see them: the details, the count of each reason, and that nothing stays behind.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "scheduler/refusal.h"
#include "server/api/grpc_status.h"
#include "server/metrics/metric_families.h"
#include "tests/server/api/test_server.h"
#include "tests/server/metrics/metrics_text.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

v1::GenerateRequest MakeRequest(const std::string& tenant, int prompt_tokens = 1, uint32_t max_tokens = 2) {
  v1::GenerateRequest request;
  for (int i = 0; i < prompt_tokens; ++i) request.mutable_token_ids()->add_ids(1);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  if (!tenant.empty()) request.set_cache_salt(tenant);
  return request;
}

// A service config, with the time between tries for $0.
constexpr char kRetryPolicy[] = R"({"methodConfig": [{"name": [{}], "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "$0", "maxBackoff": "$0", "backoffMultiplier": 1,
    "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}}]})";

class RefusalsTest : public ::testing::Test {
 protected:
  void Start(const TestServer::Options& options = {}) { server_ = std::make_unique<TestServer>(options); }
  void TearDown() override {
    server_->gate.Open();
    EXPECT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
    server_->server->Shutdown(absl::ToChronoTime(absl::Now() + kHangLimit));
    ExpectNothingHeld();
  }
  void ExpectNothingHeld() {
    EXPECT_EQ(server_->registry.size(), 0);
    Admission::Totals held = server_->admission.totals();
    held.accounts = 0;  // of tenants whose rates are not full again
    EXPECT_EQ(held, Admission::Totals());
  }
  // All refusals so far, by reason.
  std::map<std::string, double> Refusals() {
    MetricFamilies families("m", /*vllm_aliases=*/false);
    server_->metrics.Collect(&families);
    const SeriesMap series = ReadSeries(ToText(families.Take()));
    std::map<std::string, double> refusals;
    for (absl::string_view reason : kRefusalReasons) {
      const double count =
          series.at(absl::StrCat("berth_requests_rejected_total{model_name=\"m\",reason=\"", reason, "\"}"));
      if (count > 0) refusals[std::string(reason)] = count;
    }
    return refusals;
  }
  grpc::Status Generate(const v1::GenerateRequest& request) { return Call(server_.get(), request).ReadAll().status; }
  grpc::Status Complete(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    return server_->inference_stub->Complete(&context, request, &response);
  }
  grpc::Status Resume(const std::string& tenant) {
    v1::ResumeSessionRequest request;
    request.set_session_id("s");
    request.set_tenant(tenant);
    return Call(server_.get(), request).ReadAll().status;
  }
  // Calls the server by a channel of its own, with kRetryPolicy.
  std::unique_ptr<v1::Inference::Stub> RetryingStub(const std::string& backoff) {
    grpc::ClientContext context;
    v1::GetLoadResponse load;
    EXPECT_TRUE(server_->control_stub->GetLoad(&context, {}, &load).ok());
    grpc::ChannelArguments arguments;
    arguments.SetServiceConfigJSON(absl::Substitute(kRetryPolicy, backoff));
    return v1::Inference::NewStub(
        grpc::CreateCustomChannel(context.peer(), grpc::InsecureChannelCredentials(), arguments));
  }
  // A call whose request runs and is held up by the gate.
  std::unique_ptr<Call> StartHeld(const v1::GenerateRequest& request) {
    server_->gate.Close();
    auto call = std::make_unique<Call>(server_.get(), request);
    server_->gate.Allow(1);
    EXPECT_TRUE(call->ReadOne());
    return call;
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(RefusalsTest, ATenantAtItsLimitIsToldWhichAndWhenToRetry) {
  Start({.tenants = R"({"tenants": [{"name": "a", "running_sequences": 1}]})"});
  const auto held = StartHeld(MakeRequest("a", 1, 5));
  Call extra(server_.get(), MakeRequest("a"));
  const grpc::Status status = extra.ReadAll().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::ErrorInfo info;
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(0).UnpackTo(&info) && details.details(1).UnpackTo(&retry));
  EXPECT_EQ(info.reason(), "TENANT_RUNNING");
  const std::map<std::string, std::string> metadata(info.metadata().begin(), info.metadata().end());
  EXPECT_EQ(metadata, (std::map<std::string, std::string>{
                          {"setting", "running_sequences"}, {"limit", "1"}, {"value", "2"}, {"tenant", "a"}}));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);

  server_->gate.Open();
  EXPECT_TRUE(held->ReadAll().status.ok());
  EXPECT_TRUE(Generate(MakeRequest("a")).ok()) << "whoever sees the end may come again";
}

TEST_F(RefusalsTest, ARequestThatNeverFitsGetsNoDelay) {
  Start({.tenants = R"({"default": {"cache_bytes": 100}})"});
  Call call(server_.get(), MakeRequest("a", 50, 51));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(call.ReadAll().status.error_details()));
  EXPECT_EQ(details.details_size(), 1);
  const auto& trailers = call.context.GetServerTrailingMetadata();
  EXPECT_EQ(trailers.count("retry-after-ms"), 0u);
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(std::string(pushback->second.data(), pushback->second.size()), "-1");
  EXPECT_TRUE(Generate(MakeRequest("a", 50, 50)).ok());
}

// By its own policy it would wait for an hour.
TEST_F(RefusalsTest, AClientWithARetryPolicyWaitsAsLongAsTheServerSays) {
  Start({.tenants = R"({"default": {"requests_per_second": 2, "burst_seconds": 0.5}})"});
  const auto stub = RetryingStub("3600s");
  const auto complete = [&](v1::GenerateResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kHangLimit));
    return stub->Complete(&context, MakeRequest("a"), response);
  };
  const auto generate = [&](v1::GenerateResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kHangLimit));
    const auto reader = stub->Generate(&context, MakeRequest("a"));
    while (reader->Read(response)) {
    }
    return reader->Finish();
  };
  const std::function<grpc::Status(v1::GenerateResponse*)> calls[] = {complete, generate};
  for (const auto& call : calls) {
    const double before = Refusals()["tenant_request_rate"];
    for (int i = 0; i < 100 && Refusals()["tenant_request_rate"] == before; ++i) {
      v1::GenerateResponse last;
      const grpc::Status status = call(&last);
      ASSERT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(last.usage().completion_tokens(), 2);
    }
    EXPECT_GT(Refusals()["tenant_request_rate"], before);
  }
}

TEST_F(RefusalsTest, AClientWithARetryPolicyDoesNotRepeatWhatNeverFits) {
  Start({.tenants = R"({"default": {"cache_bytes": 100}})"});
  const auto stub = RetryingStub("0.001s");
  grpc::ClientContext context;
  v1::GenerateResponse response;
  EXPECT_EQ(stub->Complete(&context, MakeRequest("a", 50, 51), &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Refusals(), (std::map<std::string, double>{{"tenant_cache", 1}}));
}

TEST_F(RefusalsTest, AClientWithARetryPolicyTriesAServerThatDrainsByItsPolicy) {
  Start();
  server_->engine->Drain();
  const auto stub = RetryingStub("0.001s");
  grpc::ClientContext context;
  v1::GenerateResponse response;
  EXPECT_EQ(stub->Complete(&context, MakeRequest("a"), &response).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 0u);
  EXPECT_EQ(Refusals(), (std::map<std::string, double>{{"draining", 5}}));
}

TEST_F(RefusalsTest, EachRefusalIsCountedOnce) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/sessions");
  Start({.max_queue = 1,
         .max_running = 1,
         .session_dir = folder,
         .tenants = R"({"tenants": [{"name": "slow", "requests_per_second": 0.001},
                                    {"name": "few tokens", "tokens_per_second": 0.001},
                                    {"name": "short", "queued_tokens": 3},
                                    {"name": "small", "cache_bytes": 3},
                                    {"name": "single", "running_sequences": 1}]})"});
  v1::GenerateRequest two_outputs = MakeRequest("single");
  two_outputs.set_n(2);
  v1::GenerateRequest wrong_token = MakeRequest("");
  wrong_token.mutable_token_ids()->add_ids(1 << 20);
  v1::GenerateRequest empty_text = MakeRequest("");
  empty_text.set_prompt("");
  v1::GenerateRequest structure = MakeRequest("");
  structure.mutable_structure()->set_regex("a*");
  v1::GenerateRequest taken = MakeRequest("", 1, 50);
  taken.set_request_id("taken");
  const auto tokenize = [&] {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    return server_->inference_stub->Tokenize(&context, v1::TokenizeRequest(), &response);
  };
  ASSERT_TRUE(Generate(MakeRequest("slow")).ok());
  ASSERT_TRUE(Generate(MakeRequest("few tokens")).ok());
  const auto running = StartHeld(taken);
  std::unique_ptr<Call> waiting;
  const std::pair<std::string, std::function<grpc::Status()>> cases[] = {
      {"tenant_request_rate", [&] { return Generate(MakeRequest("slow")); }},
      {"tenant_request_rate", [&] { return Complete(MakeRequest("slow")); }},
      {"tenant_request_rate", [&] { return Resume("slow"); }},
      {"tenant_token_rate", [&] { return Complete(MakeRequest("few tokens")); }},
      {"tenant_queued_tokens", [&] { return Generate(MakeRequest("short", 4)); }},
      {"tenant_cache", [&] { return Generate(MakeRequest("small", 2, 2)); }},
      {"tenant_running", [&] { return Complete(two_outputs); }},
      {"invalid", [&] { return Generate(wrong_token); }},
      {"invalid", [&] { return Complete(empty_text); }},
      {"invalid", [&] { return Generate(structure); }},
      {"invalid", [&] { return Generate(taken); }},
      {"invalid", [&] { return Generate(MakeRequest(std::string(129, 'x'))); }},
      {"invalid", [&] { return Resume(""); }},
      {"invalid", tokenize},
      {"too_long", [&] { return Generate(MakeRequest("", 20000)); }},
      {"queue_full",
       [&] {
         waiting = std::make_unique<Call>(server_.get(), MakeRequest(""));
         WaitUntil([this] { return server_->Load().waiting() > 0; }, "the request to wait");
         return Generate(MakeRequest("other"));
       }},
      {"queue_full", [&] { return Generate(wrong_token); }},  // before anything else is looked at
      {"draining",
       [&] {
         server_->engine->Drain();
         return Generate(MakeRequest("other"));
       }},
  };
  std::map<std::string, double> expected;
  for (const auto& [reason, call] : cases) {
    EXPECT_FALSE(call().ok()) << reason;
    ++expected[reason];
    EXPECT_EQ(Refusals(), expected) << reason;
  }
  server_->gate.Open();
  EXPECT_TRUE(running->ReadAll().status.ok());
  EXPECT_TRUE(waiting->ReadAll().status.ok());
  EXPECT_EQ(Refusals(), expected);
}

TEST_F(RefusalsTest, AStormOfRefusalsAndCancellationsLeavesNothing) {
  Start({.max_queue = 3,
         .max_running = 2,
         .tenants = R"({"default": {"running_sequences": 3, "queued_requests": 2, "cache_bytes": 90,
                                    "requests_per_second": 200, "burst_seconds": 0.1}})"});
  const auto work = [this](int seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 60; ++i) {
      v1::GenerateRequest request = MakeRequest(absl::StrCat("t", random() % 3), 1 + random() % 9, 1 + random() % 9);
      if (random() % 3 == 0) request.set_prompt("text");
      if (random() % 9 == 0) request.mutable_sampling()->set_top_p(7);
      Call call(server_.get(), request);
      if (random() % 3 == 0) call.context.TryCancel();
      const grpc::StatusCode code = call.ReadAll().status.error_code();
      EXPECT_TRUE(code == grpc::OK || code == grpc::RESOURCE_EXHAUSTED || code == grpc::CANCELLED ||
                  code == grpc::INVALID_ARGUMENT)
          << code;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

// Over 8 KiB of trailers, clients end a call with another code.
TEST(GrpcStatus, LongMessagesAreCutAtACharacter) {
  for (const char* before : {"", "x"}) {
    std::string text = before;
    for (int i = 0; i < 5000; ++i) text += "\u00e4";
    const grpc::Status status = ToGrpcStatus(absl::InvalidArgumentError(text));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    const std::string message = status.error_message();
    const size_t end = message.find(" ... (");
    ASSERT_NE(end, std::string::npos);
    EXPECT_EQ(message.substr(0, end), text.substr(0, end));
    EXPECT_EQ((end - std::string(before).size()) % 2, 0U) << "within a character";
    EXPECT_EQ(message.substr(end), absl::StrCat(" ... (", text.size() - end, " more bytes)"));
    EXPECT_LT(message.size(), 1600U);
  }
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(std::string(1500, 'x'))).error_message(), std::string(1500, 'x'));
}

}  // namespace
}  // namespace berth
