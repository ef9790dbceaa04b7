// Several outputs of one request: what is refused, and the way from the request to its messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "server/request/validation.h"
#include "tests/server/api/test_server.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

class SeveralOutputsValidation : public ::testing::Test {
 protected:
  SeveralOutputsValidation() {
    model_.vocab_size = kFakeVocabSize;
    model_.eos_token_ids = {99};
    context_.model = &model_;
    context_.text = &codec_;
    context_.limits = {.max_sequence_tokens = 64, .default_max_tokens = 16, .max_logprobs = 5, .max_outputs = 4};
    request_.mutable_token_ids()->add_ids(1);
  }
  absl::StatusOr<ValidatedRequest> Validate() { return ValidateGenerate(request_, context_, /*random_seed=*/77); }
  std::string Message() { return std::string(Validate().status().message()); }

  ModelInfo model_;
  FakeTextCodec codec_;
  ValidationContext context_;
  v1::GenerateRequest request_;
};

TEST_F(SeveralOutputsValidation, AbsentMeansOne) {
  const ValidatedRequest valid = *Validate();
  EXPECT_EQ(valid.request.num_outputs, 1);
  EXPECT_EQ(valid.request.beams, BeamParams());
  EXPECT_EQ(valid.output.num_returned, 1);
  EXPECT_FALSE(valid.output.sums_logprobs);
}

TEST_F(SeveralOutputsValidation, CountsAreWithinTheirLimits) {
  request_.set_n(4);
  EXPECT_EQ(Validate()->request.num_outputs, 4);
  for (const uint32_t bad : {0u, 5u, std::numeric_limits<uint32_t>::max()}) {
    request_.set_n(bad);
    EXPECT_EQ(Message(), absl::StrCat("n: ", bad, " is outside [1, 4]"));
  }
  request_.set_n(2);
  request_.set_best_of(4);
  EXPECT_EQ(Validate()->request.num_outputs, 4);
  EXPECT_EQ(Validate()->output.num_returned, 2);
  EXPECT_EQ(Validate()->request.sampling.num_logprobs, 0);
  EXPECT_FALSE(Validate()->output.logprobs);
  EXPECT_EQ(CheckStreamed(Validate()->output).message(),
            "best_of: 4 is over n of 2; best_of > n cannot be streamed; use Complete");
  for (const uint32_t bad : {0u, 1u, 5u}) {
    request_.set_best_of(bad);
    EXPECT_EQ(Message(), absl::StrCat("best_of: ", bad, " is outside [2, 4]"));
  }
  request_.set_best_of(2);
  EXPECT_TRUE(CheckStreamed(Validate()->output).ok());
  EXPECT_EQ(Validate()->request.sampling.num_logprobs, -1);
}

TEST_F(SeveralOutputsValidation, BeamSearch) {
  v1::BeamSearch& beams = *request_.mutable_beam_search();
  for (const uint32_t bad : {0u, 1u, 5u}) {
    beams.set_num_beams(bad);
    EXPECT_EQ(Message(), absl::StrCat("beam_search.num_beams: ", bad, " is outside [2, 4]"));
  }
  beams.clear_num_beams();
  EXPECT_EQ(Message(), "beam_search.num_beams: 0 is outside [2, 4]");
  beams.set_num_beams(3);
  EXPECT_EQ(Validate()->request.beams, (BeamParams{.num_beams = 3}));
  beams.set_length_penalty(0);
  beams.set_early_stopping(v1::EARLY_STOPPING_NEVER);
  const BeamParams expected = {.num_beams = 3, .length_penalty = 0, .early_stopping = EarlyStopping::kNever};
  EXPECT_EQ(Validate()->request.beams, expected);
  EXPECT_EQ(Validate()->request.num_outputs, 1);
  EXPECT_TRUE(CheckStreamed(Validate()->output).ok());
  request_.set_n(4);
  EXPECT_EQ(Message(), "n: 4 is outside [1, 3]");
  request_.set_n(3);
  EXPECT_EQ(Message(), "");
  for (const double bad : {-10.5, 10.5, std::numeric_limits<double>::quiet_NaN()}) {
    beams.set_length_penalty(bad);
    EXPECT_EQ(Message(), absl::StrCat("beam_search.length_penalty: ", bad, " is outside [-10, 10]"));
  }
  beams.set_length_penalty(-10);
  beams.set_early_stopping(static_cast<v1::EarlyStopping>(3));
  EXPECT_EQ(Message(), "beam_search.early_stopping: 3 is outside [0, 2]");
}

TEST_F(SeveralOutputsValidation, BeamSearchRefusesWhatItWouldNotFollow) {
  const auto beams_with = [&](auto set) {
    request_.Clear();
    request_.mutable_token_ids()->add_ids(1);
    request_.mutable_beam_search()->set_num_beams(2);
    set(request_, *request_.mutable_sampling());
    return Message();
  };
  constexpr char kWhy[] = " cannot be combined with beam_search, which is greedy and uses the model's own distribution";
  using R = v1::GenerateRequest;
  using S = v1::Sampling;
  EXPECT_EQ(beams_with([](R&, S& s) { s.set_temperature(0.5f); }), absl::StrCat("sampling.temperature: 0.5", kWhy));
  EXPECT_EQ(beams_with([](R&, S& s) { s.set_top_k(5); }), absl::StrCat("sampling.top_k: 5", kWhy));
  EXPECT_EQ(beams_with([](R&, S& s) { s.set_top_p(0.5f); }), absl::StrCat("sampling.top_p: 0.5", kWhy));
  EXPECT_EQ(beams_with([](R&, S& s) { s.set_min_p(0.5f); }), absl::StrCat("sampling.min_p: 0.5", kWhy));
  EXPECT_EQ(beams_with([](R&, S& s) { s.set_repetition_penalty(2); }),
            absl::StrCat("sampling.repetition_penalty: 2", kWhy));
  EXPECT_EQ(beams_with([](R&, S& s) { s.set_presence_penalty(1); }),
            absl::StrCat("sampling.presence_penalty: 1", kWhy));
  EXPECT_EQ(beams_with([](R&, S& s) { s.set_frequency_penalty(1); }),
            absl::StrCat("sampling.frequency_penalty: 1", kWhy));
  EXPECT_EQ(beams_with([](R&, S& s) { (*s.mutable_logit_bias())[3] = 1; }),
            absl::StrCat("sampling.logit_bias: 1", kWhy));
  EXPECT_EQ(beams_with([](R& r, S&) { r.set_best_of(2); }), absl::StrCat("best_of: 2", kWhy));
  EXPECT_EQ(beams_with([](R& r, S&) { r.set_logprobs(1); }), absl::StrCat("logprobs: 1", kWhy));
  EXPECT_EQ(beams_with([](R& r, S&) { r.set_prompt_logprobs(1); }), absl::StrCat("prompt_logprobs: 1", kWhy));
  EXPECT_EQ(beams_with([](R& r, S&) { r.mutable_stopping()->add_stop("x"); }), absl::StrCat("stopping.stop: 1", kWhy));
  EXPECT_EQ(beams_with([](R& r, S& s) {
              s.set_temperature(0);
              s.set_top_p(1);
              s.set_seed(3);
              r.set_logprobs(0);
            }),
            "");
  // The model's recommendations for sampling say nothing of beams; its penalty does.
  context_.defaults.temperature = 0.7f;
  context_.defaults.top_k = 50;
  EXPECT_EQ(beams_with([](R&, S&) {}), "");
  context_.defaults.repetition_penalty = 1.5f;
  EXPECT_EQ(beams_with([](R&, S&) {}), absl::StrCat("sampling.repetition_penalty: 1.5", kWhy));
}

v1::GenerateRequest MakeRequest(std::vector<int32_t> prompt, uint32_t max_tokens, uint32_t n) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_seed(40);
  request.set_n(n);
  return request;
}

std::vector<std::vector<int32_t>> Expected(const v1::GenerateRequest& in) {
  Request request;
  request.prompt.assign(in.token_ids().ids().begin(), in.token_ids().ids().end());
  request.max_tokens = in.stopping().max_tokens();
  request.sampling.seed = in.sampling().seed();
  request.num_outputs = in.n();
  request.beams.num_beams = in.beam_search().num_beams();
  request.stop_token_ids.assign(in.stopping().stop_token_ids().begin(), in.stopping().stop_token_ids().end());
  std::vector<std::vector<int32_t>> tokens;
  for (auto& answer : FakeModelRunner::AnswersTo(request, kFakeVocabSize)) tokens.push_back(answer.tokens);
  return tokens;
}

class SeveralOutputsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    server_.gate.Open();
    ASSERT_TRUE(server_.engine->WaitUntilIdle(kHangLimit));
    EXPECT_EQ(server_.engine->GetLoad().occupancy.num_leases, 0);
    EXPECT_EQ(server_.registry.size(), 0);
    EXPECT_EQ(server_.runner.mismatch(), "");
  }
  grpc::Status Complete(const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    grpc::ClientContext context;
    return server_.inference_stub->Complete(&context, request, response);
  }
  static std::vector<std::vector<int32_t>> Tokens(const v1::GenerateResponse& response) {
    std::vector<std::vector<int32_t>> tokens = {{response.token_ids().begin(), response.token_ids().end()}};
    for (const v1::GenerateResponse& other : response.other_outputs()) {
      tokens.emplace_back(other.token_ids().begin(), other.token_ids().end());
    }
    return tokens;
  }
  // By output.
  static std::map<uint32_t, Answer> ByOutput(const Answer& answer) {
    std::map<uint32_t, Answer> by_output;
    for (const v1::GenerateResponse& message : answer.messages) by_output[message.index()].Add(message);
    return by_output;
  }

  TestServer server_;
};

TEST_F(SeveralOutputsTest, CompleteAnswersTheFirstAndTheOthers) {
  v1::GenerateRequest request = MakeRequest({1, 2, 3}, 20, 3);
  request.set_request_id("mine");
  request.set_return_prompt_token_ids(true);
  v1::GenerateResponse response;
  ASSERT_TRUE(Complete(request, &response).ok());
  EXPECT_EQ(Tokens(response), Expected(request));
  EXPECT_EQ(response.request_id(), "mine");
  EXPECT_EQ(response.prompt_token_ids_size(), 3);
  EXPECT_EQ(response.usage().prompt_tokens(), 3u);
  EXPECT_EQ(response.usage().completion_tokens(), 60u);
  EXPECT_TRUE(response.has_timings());
  EXPECT_FALSE(response.has_cumulative_logprob());
  ASSERT_EQ(response.other_outputs_size(), 2);
  for (int i = 0; i < 2; ++i) {
    const v1::GenerateResponse& other = response.other_outputs(i);
    EXPECT_EQ(other.index(), i + 1u);
    EXPECT_EQ(other.text(), *server_.codec.Decode(Tokens(response)[i + 1], true));
    EXPECT_EQ(other.finish_reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_FALSE(other.has_usage());
    EXPECT_EQ(other.prompt_token_ids_size(), 0);
  }
}

TEST_F(SeveralOutputsTest, AStreamHasMessagesOfEach) {
  v1::GenerateRequest request = MakeRequest({1, 2, 3}, 20, 3);
  request.set_logprobs(0);
  Call call(&server_, request);
  ASSERT_TRUE(call.ReadAll().status.ok());
  const std::vector<std::vector<int32_t>> expected = Expected(request);
  std::map<uint32_t, Answer> outputs = ByOutput(call.answer);
  ASSERT_EQ(outputs.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(outputs[i].tokens, expected[i]);
    EXPECT_EQ(outputs[i].finish_reason(), v1::FINISH_REASON_LENGTH);
    double sum = 0;
    for (const v1::GenerateResponse& message : outputs[i].messages) {
      for (const v1::TokenLogprobs& token : message.logprobs()) sum += token.logprob();
      EXPECT_EQ(message.has_cumulative_logprob(), &message == &outputs[i].messages.back());
    }
    EXPECT_NEAR(outputs[i].messages.back().cumulative_logprob(), sum, 1e-9);
  }
  EXPECT_EQ(call.answer.messages.back().usage().completion_tokens(), 60u);
  const auto named = [](const v1::GenerateResponse& message) { return !message.request_id().empty(); };
  EXPECT_EQ(std::count_if(call.answer.messages.begin(), call.answer.messages.end(), named), 1);
}

TEST_F(SeveralOutputsTest, AStopStringEndsItsOutputAlone) {
  v1::GenerateRequest request = MakeRequest({1, 2, 3}, 400, 3);
  const std::vector<std::vector<int32_t>> expected = Expected(request);
  const std::string text = *server_.codec.Decode(expected[1], true);
  request.mutable_stopping()->add_stop(text.substr(30, 5));
  Call call(&server_, request);
  ASSERT_TRUE(call.ReadAll().status.ok());
  std::map<uint32_t, Answer> outputs = ByOutput(call.answer);
  EXPECT_EQ(outputs[1].text, text.substr(0, 30));
  EXPECT_EQ(outputs[1].messages.back().stop_string(), text.substr(30, 5));
  EXPECT_EQ(outputs[0].tokens, expected[0]);
  EXPECT_EQ(outputs[2].tokens, expected[2]);
}

TEST_F(SeveralOutputsTest, BestOfReturnsThoseWithTheHighestMeanLogprob) {
  v1::GenerateRequest all = MakeRequest({1, 2, 3}, 20, 5);
  all.set_logprobs(0);
  v1::GenerateResponse response;
  ASSERT_TRUE(Complete(all, &response).ok());
  std::vector<std::pair<double, std::vector<int32_t>>> ranked;
  const std::vector<std::vector<int32_t>> tokens = Tokens(response);
  ranked.emplace_back(-response.cumulative_logprob(), tokens[0]);
  for (int i = 0; i < 4; ++i) ranked.emplace_back(-response.other_outputs(i).cumulative_logprob(), tokens[i + 1]);
  std::sort(ranked.begin(), ranked.end());

  v1::GenerateRequest best = MakeRequest({1, 2, 3}, 20, 2);
  best.set_best_of(5);
  v1::GenerateResponse chosen;
  ASSERT_TRUE(Complete(best, &chosen).ok());
  EXPECT_EQ(Tokens(chosen), (std::vector<std::vector<int32_t>>{ranked[0].second, ranked[1].second}));
  EXPECT_DOUBLE_EQ(chosen.cumulative_logprob(), -ranked[0].first);
  EXPECT_EQ(chosen.other_outputs(0).index(), 1u);
  EXPECT_EQ(chosen.logprobs_size(), 0);
  EXPECT_EQ(chosen.usage().completion_tokens(), 100u);

  Call call(&server_, best);
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(SeveralOutputsTest, BeamsComeAtTheEndInAMessageEach) {
  v1::GenerateRequest request = MakeRequest({1, 2, 3}, 20, 2);
  request.mutable_beam_search()->set_num_beams(4);
  for (int token : {5, 25, 45, 65, 85}) request.mutable_stopping()->add_stop_token_ids(token);
  const std::vector<std::vector<int32_t>> expected = Expected(request);
  Call call(&server_, request);
  ASSERT_TRUE(call.ReadAll().status.ok()) << call.answer.status.error_message();
  ASSERT_EQ(call.answer.messages.size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    const v1::GenerateResponse& message = call.answer.messages[i];
    EXPECT_EQ(message.index(), i);
    EXPECT_EQ(std::vector<int32_t>(message.token_ids().begin(), message.token_ids().end()), expected[i]);
    EXPECT_LT(message.cumulative_logprob(), 0);
    EXPECT_NE(message.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  }
  v1::GenerateResponse response;
  ASSERT_TRUE(Complete(request, &response).ok());
  EXPECT_EQ(Tokens(response), expected);
}

TEST_F(SeveralOutputsTest, AbortEndsAllWithWhatThereIs) {
  for (const bool beams : {false, true}) {
    server_.gate.Close();
    v1::GenerateRequest request = MakeRequest({1, 2, 3}, 400, 2);
    if (beams) request.mutable_beam_search()->set_num_beams(3);
    request.set_request_id("mine");
    Call call(&server_, request);
    server_.gate.Allow(10);
    if (!beams) {
      ASSERT_TRUE(call.ReadOne());
    }
    v1::AbortRequest abort;
    abort.add_request_ids("mine");
    WaitUntil(
        [&] {
          grpc::ClientContext context;
          context.set_deadline(absl::ToChronoTime(absl::Now() + kHangLimit));
          v1::AbortResponse aborted;
          EXPECT_TRUE(server_.control_stub->Abort(&context, abort, &aborted).ok());
          return aborted.aborted_size() == 1;
        },
        "the server to know the request");
    server_.gate.Open();
    ASSERT_TRUE(call.ReadAll().status.ok());
    std::map<uint32_t, Answer> outputs = ByOutput(call.answer);
    ASSERT_EQ(outputs.size(), 2u);
    for (auto& [index, output] : outputs) EXPECT_EQ(output.finish_reason(), v1::FINISH_REASON_CANCELLED);
  }
}

TEST_F(SeveralOutputsTest, AFailedStepEndsAllWithItsError) {
  for (const bool stream : {false, true}) {
    server_.gate.Close();
    server_.step_status = absl::InternalError("broken");
    server_.gate.Open();
    const v1::GenerateRequest request = MakeRequest({1, 2, 3}, 40, 3);
    v1::GenerateResponse response;
    if (stream) {
      Call call(&server_, request);
      EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::INTERNAL);
    } else {
      EXPECT_EQ(Complete(request, &response).error_code(), grpc::StatusCode::INTERNAL);
    }
  }
}

TEST_F(SeveralOutputsTest, WhatDoesNotFitTheArenaIsRefused) {
  v1::GenerateResponse response;
  const grpc::Status status = Complete(MakeRequest({1, 2, 3}, 9000, 16), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("do not fit the arena"), std::string::npos) << status.error_message();
}

}  // namespace
}  // namespace berth
