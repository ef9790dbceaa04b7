// Requests with a structure over gRPC. What compiles them is a fake that a test can hold up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/metrics/metric_families.h"
#include "tests/server/api/test_server.h"
#include "tests/server/metrics/metrics_text.h"
#include "tests/testing/fake_constraint.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

constexpr int32_t kEnd = 99;

// Reads "1,2;3" as the choice of the tokens 1, 2 or the token 3.
class FakeCompile {
 public:
  absl::StatusOr<CompiledGrammar> Run(const GrammarSpec& spec, const std::stop_token& stop) {
    const std::stop_callback stopped(stop, [this] { Change([] {}); });
    {
      MutexLock lock(&mutex_);
      ++runs_;
      begin_text_ = spec.begin_text;
      changed_.SignalAll();
      while (held_ && !stop.stop_requested()) changed_.Wait(&mutex_);
    }
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    if (spec.text == "(") return absl::InvalidArgumentError("1:1: no )");
    std::vector<Tokens> choices;
    for (const auto choice : absl::StrSplit(spec.text, ';')) {
      choices.emplace_back();
      for (const auto token : absl::StrSplit(choice, ',')) choices.back().push_back(std::stoi(std::string(token)));
    }
    return CompiledGrammar{std::make_shared<ChoiceConstraint>(choices, Tokens{kEnd}), 100};
  }
  void Hold() {
    Change([this] { held_ = true; });
  }
  void Release() {
    Change([this] { held_ = false; });
  }
  void WaitForRuns(int n) {
    WaitUntil([this, n] { return runs() >= n; }, "the compilations to begin");
  }
  // What the last spec had.
  std::string begin_text() {
    MutexLock lock(&mutex_);
    return begin_text_;
  }
  int runs() {
    MutexLock lock(&mutex_);
    return runs_;
  }

 private:
  template <typename F>
  void Change(const F& change) {
    MutexLock lock(&mutex_);
    change();
    changed_.SignalAll();
  }

  Mutex mutex_;
  CondVar changed_;
  int runs_ = 0;
  std::string begin_text_;
  bool held_ = false;
};

class StructureTest : public ::testing::Test {
 protected:
  StructureTest() : folder_(std::string(std::getenv("TEST_TMPDIR")) + "/structure") {
    std::filesystem::remove_all(folder_);
    Start();
  }
  void Start(bool compiles = true) {
    server_.reset();
    TestServer::Options options;
    options.session_dir = folder_;
    if (compiles) {
      options.compile_grammar = [this](const GrammarSpec& spec, std::stop_token stop) {
        return compile_.Run(spec, stop);
      };
    }
    server_ = std::make_unique<TestServer>(options);
  }
  // Once every call is over, nothing is held any more.
  void TearDown() override {
    server_->gate.Open();
    server_->server->Shutdown(absl::ToChronoTime(absl::Now() + kHangLimit));
    EXPECT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
    EXPECT_EQ(server_->registry.size(), 0);
    EXPECT_EQ(server_->grammars->load().waiting, 0);
    EXPECT_EQ(server_->engine->GetLoad().occupancy.num_leases, 0);
    EXPECT_EQ(server_->runner.mismatch(), "");
  }

  void WaitUntilGone() {
    WaitUntil([this] { return server_->registry.size() == 0; }, "the requests to leave the registry");
  }

  static v1::GenerateRequest MakeRequest(const std::string& choices = "") {
    v1::GenerateRequest request;
    for (int32_t token : {1, 2, 3}) request.mutable_token_ids()->add_ids(token);
    request.mutable_stopping()->set_max_tokens(20);
    request.mutable_stopping()->add_stop_token_ids(kEnd);
    request.mutable_sampling()->set_seed(7);  // two requests give the same
    request.set_request_id("r");
    if (!choices.empty()) request.mutable_structure()->set_regex(choices);
    return request;
  }
  Answer Generate(const v1::GenerateRequest& request) { return Call(server_.get(), request).ReadAll(); }
  bool Abort(const std::string& request_id) {
    grpc::ClientContext context;
    v1::AbortRequest request;
    request.add_request_ids(request_id);
    v1::AbortResponse response;
    return server_->control_stub->Abort(&context, request, &response).ok();
  }
  Answer Resume(const std::string& session_id) {
    v1::ResumeSessionRequest resume;
    resume.set_session_id(session_id);
    return Call(server_.get(), resume).ReadAll();
  }
  SeriesMap Scrape() {
    MetricFamilies families("m", /*vllm_aliases=*/false);
    server_->metrics.Collect(&families);
    return ReadSeries(ToText(families.Take()));
  }

  const std::string folder_;
  FakeCompile compile_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(StructureTest, TheOutputIsOfTheGrammar) {
  const Answer answer = Generate(MakeRequest("5,6,7,8;5,6,9"));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_TRUE(answer.tokens == Tokens({5, 6, 7, 8}) || answer.tokens == Tokens({5, 6, 9}) ||
              answer.tokens == Tokens({5, 6, 7, 8, kEnd}) || answer.tokens == Tokens({5, 6, 9, kEnd}));
  EXPECT_GT(server_->engine->GetLoad().counts.forced_tokens, 0);
}

TEST_F(StructureTest, ABeginThatThePromptEndsWithBeginsAtOnce) {
  v1::GenerateRequest request = MakeRequest("5,6");
  request.set_prompt("Think. </think>");
  for (const auto& [begin, rest] : std::map<std::string, std::string>{
           {"</think>", ""}, {"Think. </think>", ""}, {"<96>Think. </think>", ""}, {"think", "think"}, {" ", " "}}) {
    request.mutable_structure()->set_begin_after_text(begin);
    EXPECT_TRUE(Generate(request).status.ok());
    EXPECT_EQ(compile_.begin_text(), rest) << begin;
  }
}

TEST_F(StructureTest, MaxTokensCutsIt) {
  v1::GenerateRequest request = MakeRequest("5,6,7,8");
  request.mutable_stopping()->set_max_tokens(2);
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.tokens, Tokens({5, 6}));
}

TEST_F(StructureTest, AnErrorOfTheCompilerEndsTheCall) {
  const Answer answer = Generate(MakeRequest("("));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(answer.status.error_message(), "structure.regex: 1:1: no )");
  EXPECT_EQ(server_->registry.size(), 0);
  EXPECT_TRUE(Generate(MakeRequest("5")).status.ok());
}

TEST_F(StructureTest, WhatWaitsForItsGrammarHoldsNoPlace) {
  compile_.Hold();
  Call waiting(server_.get(), MakeRequest("5,6"));
  compile_.WaitForRuns(1);
  v1::GenerateRequest other = MakeRequest();
  EXPECT_EQ(Generate(other).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  other.set_request_id("other");
  EXPECT_TRUE(Generate(other).status.ok());
  EXPECT_EQ(server_->Load().running() + server_->Load().waiting(), 0);
  compile_.Release();
  EXPECT_EQ(waiting.ReadAll().finish_reason(), v1::FINISH_REASON_STOP);
}

TEST_F(StructureTest, TwoRequestsShareACompilation) {
  compile_.Hold();
  Call first(server_.get(), MakeRequest("5,6"));
  v1::GenerateRequest request = MakeRequest("5,6");
  request.set_request_id("second");
  Call second(server_.get(), request);
  WaitUntil([this] { return server_->grammars->load().waiting == 2; }, "both requests to wait for their grammar");
  compile_.Release();
  EXPECT_TRUE(first.ReadAll().status.ok());
  EXPECT_TRUE(second.ReadAll().status.ok());
  EXPECT_EQ(compile_.runs(), 1);
}

TEST_F(StructureTest, ACallThatIsCancelledWhileItWaitsEndsAtOnce) {
  compile_.Hold();
  Call call(server_.get(), MakeRequest("5,6"));
  compile_.WaitForRuns(1);
  call.context.TryCancel();
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::CANCELLED);
  WaitUntilGone();
}

TEST_F(StructureTest, ADeadlineThatPassesWhileItWaitsEndsTheCall) {
  compile_.Hold();
  TryLonger(
      [this](absl::Duration time) {
        Start();
        const absl::Time deadline = absl::Now() + time;
        Call call(server_.get(), MakeRequest("5,6"), deadline);
        const bool waited = HoldsBefore(deadline, [this] { return server_->grammars->load().waiting > 0; });
        EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
        WaitUntilGone();
        return waited;
      },
      "the request to wait for its grammar before its deadline");
}

TEST_F(StructureTest, AbortEndsACallThatWaits) {
  compile_.Hold();
  Call call(server_.get(), MakeRequest("5,6"));
  compile_.WaitForRuns(1);
  EXPECT_TRUE(Abort("r"));
  const Answer& answer = call.ReadAll();
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.finish_reason(), v1::FINISH_REASON_CANCELLED);
}

TEST_F(StructureTest, ACallThatEndsWhileItWaitsHasItsTimesAndCounts) {
  compile_.Hold();
  Call call(server_.get(), MakeRequest("5,6"));
  compile_.WaitForRuns(1);
  EXPECT_TRUE(Abort("r"));
  const Answer& answer = call.ReadAll();
  ASSERT_FALSE(answer.messages.empty());
  const double hour = 3600;
  EXPECT_LT(answer.messages.back().timings().queue_seconds(), hour);
  const SeriesMap series = Scrape();
  EXPECT_EQ(series.at(R"(berth_requests_accepted_total{model_name="m"})"), 1);
  EXPECT_EQ(series.at(R"(berth_requests_finished_total{model_name="m",finish_reason="cancelled"})"), 1);
  EXPECT_LT(series.at(R"(berth_e2e_request_latency_seconds_sum{model_name="m"})"), hour);
  EXPECT_LT(series.at(R"(berth_request_queue_time_seconds_sum{model_name="m"})"), hour);
}

TEST_F(StructureTest, AtTheEndCallsThatWaitAreAnswered) {
  compile_.Hold();
  Call call(server_.get(), MakeRequest("5,6"));
  compile_.WaitForRuns(1);
  server_->intake->EndAll();
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(StructureTest, AServerThatDrainsRefusesWhatIsCompiledLater) {
  compile_.Hold();
  Call call(server_.get(), MakeRequest("5,6"));
  compile_.WaitForRuns(1);
  server_->engine->Drain();
  compile_.Release();
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(StructureTest, ASessionGoesOnWithTheGrammarWhereItWas) {
  v1::GenerateRequest request = MakeRequest("5,6,7,8,10,11;5,6,7,9,10,11;5,6,7,8,12,13;5,6,7,9,12,13");
  const Tokens whole = Generate(request).tokens;
  request.set_session_id("s");
  request.set_autosave_tokens(1);
  ASSERT_TRUE(Generate(request).status.ok());
  for (const size_t received : {size_t{0}, size_t{4}}) {
    Start();
    v1::ResumeSessionRequest resume;
    resume.set_session_id("s");
    resume.set_received_tokens(static_cast<uint32_t>(received));
    const Answer answer = Call(server_.get(), resume).ReadAll();
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.tokens, Tokens(whole.begin() + static_cast<int64_t>(received), whole.end()));
    EXPECT_EQ(answer.finish_reason(), v1::FINISH_REASON_STOP);
  }
}

TEST_F(StructureTest, ASessionStaysWhenItsResumeIsCancelledWhileItWaits) {
  v1::GenerateRequest request = MakeRequest("5,6,7,8");
  request.set_session_id("s");
  request.set_autosave_tokens(1);
  const Tokens whole = Generate(request).tokens;
  Start();
  compile_.Hold();
  v1::ResumeSessionRequest resume;
  resume.set_session_id("s");
  Call call(server_.get(), resume);
  compile_.WaitForRuns(2);
  call.context.TryCancel();
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::CANCELLED);
  WaitUntilGone();
  compile_.Release();
  const Answer answer = Resume("s");
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.tokens, whole);
}

TEST_F(StructureTest, AServerThatCompilesNothingRefusesStructures) {
  v1::GenerateRequest request = MakeRequest("5,6,7,8");
  request.set_session_id("s");
  request.set_autosave_tokens(1);
  ASSERT_TRUE(Generate(request).status.ok());
  Start(/*compiles=*/false);
  for (const Answer& answer : {Generate(MakeRequest("5")), Resume("s")}) {
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(answer.status.error_message(), "structure.regex: this server does not compile grammars");
  }
}

// Calls end while they wait, while they run and in between, in every way. TearDown finds that nothing is held.
TEST_F(StructureTest, CallsMayEndAtAnyTime) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 40;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kCalls; ++i) {
        v1::GenerateRequest request = MakeRequest(absl::StrCat(5 + (t + i) % 7, ",6,7;8,9,", i % 3));
        const std::string id = absl::StrCat(t, "-", i);
        request.set_request_id(id);
        if (i % 2 == 0) request.set_session_id(id);
        const int way = i % 4;
        Call call(server_.get(), request,
                  way == 0 ? absl::Now() + absl::Microseconds(500 * (i % 5)) : absl::InfiniteFuture());
        if (way == 1) call.context.TryCancel();
        if (way == 2) Abort(id);
        const grpc::Status status = call.ReadAll().status;
        const grpc::StatusCode code = status.error_code();
        // A call whose deadline is closer than its first token may be refused at once.
        const bool too_late = code == grpc::StatusCode::DEADLINE_EXCEEDED ||
                              (code == grpc::StatusCode::RESOURCE_EXHAUSTED &&
                               absl::StrContains(status.error_message(), "after the deadline in "));
        EXPECT_TRUE(code == grpc::StatusCode::OK || (way == 0 && too_late) ||
                    (way == 1 && code == grpc::StatusCode::CANCELLED))
            << id << ": " << code << " " << status.error_message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitUntilGone();
}

// Nothing tells when the save waits, so the call ends some time after it was sent. If the save comes later than that,
// there is no such session.
TEST_F(StructureTest, ASaveOfASessionThatWaitsForItsGrammarIsAnswered) {
  compile_.Hold();
  v1::GenerateRequest request = MakeRequest("5,6");
  request.set_session_id("s");
  int attempts = 0;
  TryLonger(
      [&](absl::Duration time) {
        Call call(server_.get(), request);
        compile_.WaitForRuns(++attempts);
        std::future<grpc::StatusCode> save = std::async(std::launch::async, [this] {
          grpc::ClientContext context;
          v1::SaveSessionRequest saved;
          saved.set_session_id("s");
          v1::SaveSessionResponse response;
          return server_->sessions_stub->Save(&context, saved, &response).error_code();
        });
        absl::SleepFor(time);
        call.context.TryCancel();
        call.ReadAll();
        WaitUntilGone();
        const grpc::StatusCode code = save.get();
        if (code == grpc::StatusCode::NOT_FOUND) return false;
        EXPECT_EQ(code, grpc::StatusCode::FAILED_PRECONDITION);
        return true;
      },
      "a save to come before the end of its session");
}

TEST_F(StructureTest, SeveralOutputsFollowItEach) {
  v1::GenerateRequest request = MakeRequest("5,6;7,8;9,10;11,12");
  request.set_n(3);
  request.mutable_sampling()->set_temperature(2);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  ASSERT_TRUE(server_->inference_stub->Complete(&context, request, &response).ok());
  ASSERT_EQ(response.other_outputs_size(), 2);
  for (const v1::GenerateResponse& output : response.other_outputs()) {
    EXPECT_EQ(output.finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(output.token_ids(1), output.token_ids(0) + 1);
  }
}

// What is refused before anything is compiled.
TEST_F(StructureTest, RefusesByFieldValueAndLimit) {
  const auto refusal = [this](const std::function<void(v1::GenerateRequest*)>& change) {
    v1::GenerateRequest request = MakeRequest("5");
    change(&request);
    const Answer answer = Generate(request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return answer.status.error_message();
  };
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->Clear(); }), HasSubstr("structure: none of json_schema"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->set_json_object(false); }),
              HasSubstr("structure.json_object: false"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->mutable_choice(); }),
              HasSubstr("structure.choice: 0 choices"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->mutable_choice()->add_choices(""); }),
              HasSubstr("structure.choice[0]: is empty"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->set_regex(std::string((1 << 20) + 1, 'a')); }),
              HasSubstr("structure.regex: 1048577 bytes"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->set_whitespace(v1::WHITESPACE_COMPACT); }),
              HasSubstr("structure.whitespace: applies to JSON only"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->set_unknown_keywords(v1::UNKNOWN_KEYWORDS_REFUSE); }),
              HasSubstr("structure.unknown_keywords: applies to schemas only; structure.regex is set"));
  EXPECT_THAT(refusal([](auto* r) {
                r->mutable_structure()->set_json_schema("{}");
                r->mutable_structure()->set_unknown_keywords(static_cast<v1::UnknownKeywords>(2));
              }),
              HasSubstr("structure.unknown_keywords: 2 is outside [0, 1]"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->set_property_order(v1::PROPERTY_ORDER_ANY); }),
              HasSubstr("structure.property_order: applies to schemas only; structure.regex is set"));
  EXPECT_THAT(refusal([](auto* r) {
                r->mutable_structure()->set_json_schema("{}");
                r->mutable_structure()->set_property_order(static_cast<v1::PropertyOrder>(2));
              }),
              HasSubstr("structure.property_order: 2 is outside [0, 1]"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->set_begin_after_token(100); }),
              HasSubstr("structure.begin_after_token"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_structure()->set_begin_after_text(""); }),
              HasSubstr("structure.begin_after_text: 0 bytes are outside [1, 256]"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_stopping()->set_ignore_eos(true); }), HasSubstr("stopping.ignore_eos"));
  EXPECT_EQ(compile_.runs(), 0);
}

}  // namespace
}  // namespace berth
