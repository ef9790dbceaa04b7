#include "server/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
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
#include "client/health.h"
#include "scheduler/mutex.h"
#include "tests/server/api/fake_text_codec.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

// Answers 7 to everything. Its steps can be held up, and fail.
class SevenRunner final : public ModelRunner {
 public:
  SevenRunner() {
    info_.name = "seven";
    info_.model_type = "fake";
    info_.vocab_size = 100;
    info_.device = "cpu";
  }
  const ModelInfo& info() const override { return info_; }
  absl::Status Run(const StepPlan& plan, StepResult* result) override {
    {
      MutexLock lock(&mutex_);
      while (!open_ && num_allowed_ == 0) changed_.Wait(&mutex_);
      if (!open_) --num_allowed_;
      if (!status_.ok()) return status_;
    }
    result->rows.assign(plan.rows.size(), RowResult{});
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      if (plan.rows[i].sample) result->rows[i].token = 7;
    }
    return absl::OkStatus();
  }

  void SetOpen(bool open) {
    MutexLock lock(&mutex_);
    open_ = open;
    changed_.SignalAll();
  }
  // Lets one step run, although it is not open.
  void AllowStep() {
    MutexLock lock(&mutex_);
    ++num_allowed_;
    changed_.SignalAll();
  }
  void Fail(absl::Status status) {
    MutexLock lock(&mutex_);
    status_ = std::move(status);
  }

 private:
  ModelInfo info_;
  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t num_allowed_ ABSL_GUARDED_BY(mutex_) = 0;  // steps
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    plan_ = *BuildCachePlan({StaticLayer(), RecurrentLayer()}, 16);
    storage_ = *CreateHostStorage(4 << 20);
    config_.model.model_dir = "/m";
    config_.listen = {"127.0.0.1", 0};
    config_.metrics_listen = std::nullopt;
  }
  ~ServerTest() override { runner_.SetOpen(true); }

  absl::StatusOr<std::unique_ptr<Server>> StartServer() {
    return Server::Start(config_, {.plan = plan_,
                                   .max_sequence_tokens = 1000,
                                   .storage = storage_.get(),
                                   .runner = &runner_,
                                   .text = &text_,
                                   .compile_grammar = compile_grammar_,
                                   .libtorch_version = "2",
                                   .cpu_capability = "none"});
  }

  void SetUp() override { Restart(); }

  void Restart() {
    server_.reset();
    auto server = StartServer();
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials());
  }

  // "SERVING", "NOT_SERVING", or the status code.
  std::string Health(const std::string& name) { return cli::CheckHealth(channel_, name, absl::Seconds(10)); }

  grpc::Status Complete(uint32_t max_tokens, v1::GenerateResponse* response = nullptr) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::GenerateResponse ignored;
    return v1::Inference::NewStub(channel_)->Complete(&context, MakeRequest(max_tokens),
                                                      response != nullptr ? response : &ignored);
  }
  static v1::GenerateRequest MakeRequest(uint32_t max_tokens) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->add_ids(1);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }

  // Waits until the engine runs `n` requests.
  void WaitForRunning(int64_t n) {
    v1::GetLoadResponse load;
    while (load.running() != n) {
      grpc::ClientContext context;
      ASSERT_TRUE(v1::Control::NewStub(channel_)->GetLoad(&context, {}, &load).ok());
    }
  }

  Config config_;
  CachePlan plan_;
  std::unique_ptr<ArenaStorage> storage_;
  SevenRunner runner_;
  FakeTextCodec text_;
  GrammarCompiler::CompileFunction compile_grammar_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

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
  runner_.SetOpen(false);
  grpc::Status status;
  std::thread client([&] { status = Complete(5); });
  WaitForRunning(1);
  std::thread drain([&] { server_->Drain(absl::Seconds(60)); });
  while (Health("readiness") != "NOT_SERVING") {
  }
  EXPECT_EQ(Health("berth.v1.Inference"), "NOT_SERVING");
  EXPECT_EQ(Health(""), "SERVING");
  EXPECT_EQ(Health("liveness"), "SERVING");
  // Readiness falls a moment before the engine refuses.
  grpc::Status refused;
  while (refused.ok()) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    v1::GenerateResponse response;
    refused = v1::Inference::NewStub(channel_)->Complete(&context, MakeRequest(1), &response);
    if (refused.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) refused = grpc::Status::OK;
  }
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE) << refused.error_message();
  runner_.SetOpen(true);
  client.join();
  drain.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ServerTest, WhatTheGraceDoesNotCoverEndsUnavailable) {
  grpc::Status status;
  std::atomic<bool> ended = false;
  runner_.SetOpen(false);
  std::thread client([&] {
    status = Complete(900);
    ended = true;
  });
  WaitForRunning(1);
  std::thread drain([&] { server_->Drain(absl::ZeroDuration()); });
  // The request ends after the step in which it is told to; its 900 steps would take 9 s.
  while (!ended) {
    runner_.AllowStep();
    absl::SleepFor(absl::Milliseconds(10));
  }
  runner_.SetOpen(true);
  drain.join();
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

// The engine does not know of such a request, and is idle.
TEST_F(ServerTest, DrainEndsWhatWaitsForItsGrammar) {
  std::promise<void> compiles;
  compile_grammar_ = [&compiles](const GrammarSpec& spec, std::stop_token stop) -> absl::StatusOr<CompiledGrammar> {
    if (spec.kind != GrammarSpec::Kind::kRegex) return CompiledGrammar();  // the server's own, at its start
    compiles.set_value();
    std::promise<void> stopped;
    const std::stop_callback on_stop(stop, [&stopped] { stopped.set_value(); });
    stopped.get_future().wait();
    return absl::CancelledError("stopped");
  };
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
  server_->Drain(absl::Seconds(60));
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(status.error_message(), "the server shut down after 0 tokens");
}

TEST_F(ServerTest, ADeadEngineFailsLiveness) {
  runner_.Fail(absl::InternalError("the device is lost"));
  for (int i = 0; i < 20 && Complete(2).error_code() != grpc::StatusCode::UNAVAILABLE; ++i) {
  }
  server_->UpdateHealth();
  for (const char* name : {"", "liveness", "readiness", "berth.v1.Inference"}) {
    EXPECT_EQ(Health(name), "NOT_SERVING") << name;
  }
}

TEST_F(ServerTest, AHangingStepFailsLivenessUntilItGoesOn) {
  std::promise<std::string> hung;
  config_.watchdog = {.timeout = absl::Milliseconds(20),
                      .on_hang = [&hung](const std::string& where) { hung.set_value(where); }};
  Restart();
  runner_.SetOpen(false);
  std::future<grpc::Status> call = std::async(std::launch::async, [this] { return Complete(3); });
  EXPECT_THAT(hung.get_future().get(), HasSubstr("phase run, 1 rows, 1 tokens, in "));
  server_->UpdateHealth();
  EXPECT_EQ(Health("liveness"), "NOT_SERVING");
  EXPECT_EQ(Health("readiness"), "NOT_SERVING");
  runner_.SetOpen(true);
  EXPECT_TRUE(call.get().ok());
  while (Health("liveness") != "SERVING") server_->UpdateHealth();  // at the watchdog's next wake-up
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
  storage_ = *CreateHostStorage(plan_.groups[0].unit_bytes);
  EXPECT_FALSE(StartServer().ok());
}

}  // namespace
}  // namespace berth
