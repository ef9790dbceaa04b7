// Several outputs of one request. Some of them come to a dead end of the structure.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/api/test_server.h"
#include "tests/testing/fake_constraint.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

constexpr int32_t kEnd = 99;
constexpr int32_t kLives = 5;
constexpr int32_t kDies = 55;  // as likely

// Outputs that begin with 5 are complete after four tokens, and outputs that begin with 55 after one, which min_tokens
// bans.
class FailedOutputs : public ::testing::Test {
 protected:
  FailedOutputs() : server_(MakeOptions()) {}
  void TearDown() override {
    EXPECT_TRUE(server_.engine->WaitUntilIdle(kHangLimit));
    WaitUntil([this] { return server_.registry.size() == 0; }, "the ids to be free");
    EXPECT_EQ(server_.engine->GetLoad().occupancy.num_leases, 0);
  }
  static TestServer::Options MakeOptions() {
    TestServer::Options options;
    options.compile_grammar = [](const GrammarSpec& spec, const std::stop_token&) -> absl::StatusOr<CompiledGrammar> {
      std::vector<std::vector<int32_t>> choices = {{kDies}};
      if (spec.text == "some") {
        for (const auto& rest : std::vector<std::vector<int32_t>>{{6, 8, 9}, {6, 10, 9}, {11, 8, 9}}) {
          choices.push_back({kLives, rest[0], rest[1], rest[2]});
        }
      }
      return CompiledGrammar{std::make_shared<ChoiceConstraint>(choices, std::vector<int32_t>{kEnd}), 100};
    };
    return options;
  }
  // `structure`: "some" or "all" of the outputs die.
  static v1::GenerateRequest MakeRequest(const std::string& structure, uint32_t n) {
    v1::GenerateRequest request;
    for (const int32_t token : {1, 2, 3}) request.mutable_token_ids()->add_ids(token);
    request.mutable_stopping()->set_max_tokens(20);
    request.mutable_stopping()->set_min_tokens(3);
    request.mutable_stopping()->add_stop_token_ids(kEnd);
    request.mutable_sampling()->set_seed(7);
    request.mutable_sampling()->set_temperature(1);
    request.mutable_structure()->set_regex(structure);
    request.set_n(n);
    return request;
  }
  grpc::Status Complete(const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    grpc::ClientContext context;
    return server_.inference_stub->Complete(&context, request, response);
  }
  static void ExpectItsEnd(int32_t first_token, v1::FinishReason reason) {
    EXPECT_EQ(reason, first_token == kDies ? v1::FINISH_REASON_ERROR : v1::FINISH_REASON_STOP);
  }
  static void ExpectAllDied(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find("only the end may come, which min_tokens of 3 bans"), std::string::npos)
        << status.error_message();
  }

  TestServer server_;
};

TEST_F(FailedOutputs, TheOtherOutputsOfAStreamGoOn) {
  Call call(&server_, MakeRequest("some", 4));
  const Answer& answer = call.ReadAll();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  std::map<uint32_t, int32_t> first;
  std::map<v1::FinishReason, int> ends;
  for (const v1::GenerateResponse& message : answer.messages) {
    if (message.token_ids_size() > 0) first.emplace(message.index(), message.token_ids(0));
    if (message.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) continue;
    ++ends[message.finish_reason()];
    ExpectItsEnd(first[message.index()], message.finish_reason());
  }
  EXPECT_GT(ends[v1::FINISH_REASON_STOP], 0);
  EXPECT_GT(ends[v1::FINISH_REASON_ERROR], 0);
  EXPECT_EQ(ends[v1::FINISH_REASON_STOP] + ends[v1::FINISH_REASON_ERROR], 4);
}

TEST_F(FailedOutputs, CompleteReturnsThemAll) {
  v1::GenerateResponse response;
  const grpc::Status status = Complete(MakeRequest("some", 4), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.other_outputs_size(), 3);
  ExpectItsEnd(response.token_ids(0), response.finish_reason());
  for (const v1::GenerateResponse& output : response.other_outputs()) {
    ExpectItsEnd(output.token_ids(0), output.finish_reason());
  }
}

TEST_F(FailedOutputs, BestOfPrefersWhatEndedWell) {
  v1::GenerateRequest request = MakeRequest("some", 1);
  request.set_best_of(4);
  std::map<v1::FinishReason, int> best, all;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    request.mutable_sampling()->set_seed(seed);
    for (const bool only_best : {true, false}) {
      request.set_n(only_best ? 1 : 4);
      v1::GenerateResponse response;
      const grpc::Status status = Complete(request, &response);
      if (!status.ok()) {
        ExpectAllDied(status);
        continue;
      }
      std::map<v1::FinishReason, int>& ends = only_best ? best : all;
      ++ends[response.finish_reason()];
      for (const v1::GenerateResponse& output : response.other_outputs()) ++ends[output.finish_reason()];
    }
  }
  EXPECT_GT(best[v1::FINISH_REASON_STOP], 0);
  EXPECT_EQ(best.size(), 1u) << "an output that failed is the best";
  EXPECT_GT(all[v1::FINISH_REASON_STOP], 0);
  EXPECT_GT(all[v1::FINISH_REASON_ERROR], 0);
  EXPECT_EQ(all.size(), 2u);
}

TEST_F(FailedOutputs, WhereAllDieTheCallHasTheError) {
  for (const uint32_t n : {1u, 3u}) {
    v1::GenerateResponse response;
    const grpc::Status status = Complete(MakeRequest("all", n), &response);
    ExpectAllDied(status);
    Call call(&server_, MakeRequest("all", n));
    EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(FailedOutputs, AFailedStepEndsThemAll) {
  server_.gate.Close();
  v1::GenerateRequest request = MakeRequest("some", 4);
  request.mutable_sampling()->set_seed(3);
  Call call(&server_, request);
  server_.gate.Allow(2);
  WaitUntil([this] { return server_.engine->GetLoad().counts.generation_tokens >= 4; }, "the first tokens");
  server_.step_status = absl::InternalError("the step failed");
  server_.gate.Open();
  const grpc::Status status = call.ReadAll().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL) << status.error_message();
}

TEST_F(FailedOutputs, ASearchOfMoreBeamsThanOutputsEndsAsTheStepDid) {
  server_.gate.Close();
  v1::GenerateRequest request = MakeRequest("some", 1);
  request.clear_structure();
  request.clear_sampling();
  request.mutable_beam_search()->set_num_beams(4);
  Call call(&server_, request);
  server_.gate.Allow(2);
  WaitUntil([this] { return server_.engine->GetLoad().counts.generation_tokens >= 4; }, "the first tokens");
  server_.step_status = absl::InternalError("the step failed");
  server_.gate.Open();
  const grpc::Status status = call.ReadAll().status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL) << status.error_message();
}

}  // namespace
}  // namespace berth
