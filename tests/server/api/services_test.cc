// The services end to end in one process: gRPC over a port of its own, the real engine and cache.
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/api/control_service.h"
#include "server/api/inference_service.h"
#include "tests/server/api/test_server.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

v1::GenerateRequest MakeRequest(std::vector<int32_t> prompt, uint32_t max_tokens, uint64_t seed = 1) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

// What the model without weights answers when it is asked alone.
std::vector<int32_t> ExpectedTokens(const v1::GenerateRequest& in) {
  Request request;
  request.prompt.assign(in.token_ids().ids().begin(), in.token_ids().ids().end());
  request.max_tokens = in.stopping().max_tokens();
  request.sampling.seed = in.sampling().seed();
  return FakeModelRunner::AnswerTo(request, kFakeVocabSize).tokens;
}

void ExpectBytesAddUp(const v1::GetLoadResponse& load, int64_t num_leases) {
  EXPECT_EQ(load.running(), num_leases);
  EXPECT_EQ(load.cache().num_leases(), num_leases);
  int64_t bytes = load.cache().free_bytes() + load.cache().overhead_bytes();
  for (const v1::PoolOccupancy& pool : load.cache().pools()) {
    EXPECT_EQ(pool.live_units() > 0, num_leases > 0);
    bytes += pool.live_bytes() + pool.shared_bytes() + pool.cached_bytes() + pool.free_bytes();
  }
  EXPECT_EQ(bytes, load.cache().arena_bytes());
}

class ServicesTest : public ::testing::Test {
 protected:
  void Start(const TestServer::Options& options = {}) { server_ = std::make_unique<TestServer>(options); }
  // Once every RPC is over, nothing is held any more.
  void TearDown() override {
    if (server_ == nullptr) return;
    server_->gate.Open();
    server_->server->Shutdown(absl::ToChronoTime(absl::Now() + kHangLimit));
    ExpectIdle();
    EXPECT_EQ(server_->registry.size(), 0);
    EXPECT_EQ(server_->runner.mismatch(), "");
  }
  void ExpectIdle() {
    const bool idle = server_->engine->WaitUntilIdle(kHangLimit);
    const EngineLoad load = server_->engine->GetLoad();
    ASSERT_TRUE(idle) << load.counts.num_running << " run, " << load.counts.num_waiting << " wait, "
                      << server_->registry.size() << " are registered";
    EXPECT_EQ(load.counts.num_running, 0);
    EXPECT_EQ(load.counts.num_waiting, 0);
    EXPECT_EQ(load.occupancy.num_leases, 0);
    for (const PoolOccupancy& pool : load.occupancy.pools) EXPECT_EQ(pool.live_units, 0);
    EXPECT_EQ(load.occupancy.TotalBytes(), load.occupancy.arena_bytes);
  }
  // Steps until the engine has let go of every request; returns how many steps that took.
  int64_t StepUntilIdle(int64_t limit) {
    return server_->gate.AllowUntil([this] { return server_->engine->WaitUntilIdle(absl::ZeroDuration()); }, limit);
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(ServicesTest, StreamsTheModelsTokensAndTheirText) {
  Start();
  v1::GenerateRequest request = MakeRequest({1, 2, 3}, 50);
  request.set_return_prompt_token_ids(true);
  Call call(server_.get(), request);
  const Answer& answer = call.ReadAll();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.tokens, ExpectedTokens(request));
  EXPECT_EQ(answer.text, *server_->codec.Decode(answer.tokens, true));
  EXPECT_EQ(answer.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_NE(answer.messages[0].request_id(), "");
  EXPECT_EQ(answer.messages[0].prompt_token_ids_size(), 3);
  uint32_t tokens = 0;
  for (const v1::GenerateResponse& message : answer.messages) {
    tokens += message.token_ids_size();
    EXPECT_EQ(message.usage().completion_tokens(), tokens);
    EXPECT_EQ(message.usage().prompt_tokens(), 3u);
    EXPECT_EQ(message.has_timings(), &message == &answer.messages.back());
    EXPECT_EQ(message.request_id().empty(), &message != &answer.messages.front());
  }
}

TEST_F(ServicesTest, AnEncoderReadsThePromptAndTheDecoderAnswers) {
  Start({.has_encoder = true});
  v1::GenerateRequest request = MakeRequest({1, 2, 3, 4}, 20);
  request.set_return_prompt_token_ids(true);
  request.set_forced_bos_token_id(42);
  Call call(server_.get(), request);
  const Answer& answer = call.ReadAll();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  Request expected;
  expected.encoder_tokens = {1, 2, 3, 4};
  expected.prompt = {95};
  expected.forced_first = {42};
  expected.forced_last = {99};
  expected.max_tokens = 20;
  expected.sampling.seed = 1;
  EXPECT_EQ(answer.tokens, FakeModelRunner::AnswerTo(expected, kFakeVocabSize).tokens);
  EXPECT_EQ(answer.tokens.front(), 42);
  EXPECT_EQ(answer.tokens.back(), 99);
  EXPECT_EQ(answer.messages[0].prompt_token_ids_size(), 4);
  EXPECT_EQ(answer.messages[0].usage().prompt_tokens(), 5u);
}

TEST_F(ServicesTest, EachStepReachesTheClientBeforeTheNext) {
  Start();
  server_->gate.Close();
  Call call(server_.get(), MakeRequest({1}, 3));
  for (int i = 0; i < 3; ++i) {
    server_->gate.Allow(1);
    ASSERT_TRUE(call.ReadOne());
    EXPECT_EQ(call.answer.tokens.size(), i + 1u);
  }
  EXPECT_TRUE(call.ReadAll().status.ok());
}

TEST_F(ServicesTest, CompleteAnswersTheSameInOnePiece) {
  Start();
  v1::GenerateRequest request = MakeRequest({1, 2, 3}, 50);
  request.set_logprobs(0);
  request.set_request_id("mine");
  grpc::ClientContext context;
  v1::GenerateResponse response;
  ASSERT_TRUE(server_->inference_stub->Complete(&context, request, &response).ok());
  const std::vector<int32_t> tokens(response.token_ids().begin(), response.token_ids().end());
  EXPECT_EQ(tokens, ExpectedTokens(request));
  EXPECT_EQ(response.text(), *server_->codec.Decode(tokens, true));
  EXPECT_EQ(response.request_id(), "mine");
  EXPECT_EQ(response.logprobs_size(), 50);
  EXPECT_EQ(response.usage().completion_tokens(), 50u);
  EXPECT_EQ(response.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(response.has_timings());
}

TEST_F(ServicesTest, StopStringAcrossTokensEndsTheStreamAndTheRequest) {
  Start();
  v1::GenerateRequest request = MakeRequest({4, 5}, 2000);
  const std::vector<int32_t> tokens = ExpectedTokens(request);
  const std::string text = *server_->codec.Decode(tokens, true);
  const std::string stop = text.substr(20, 4);
  request.mutable_stopping()->add_stop(stop);
  Call call(server_.get(), request);
  const Answer& answer = call.ReadAll();
  ASSERT_TRUE(answer.status.ok());
  const size_t end = text.find(stop);
  EXPECT_EQ(answer.text, text.substr(0, end));
  EXPECT_EQ(answer.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(answer.messages.back().stop_string(), stop);
  // The tokens up to the one that completes the stop string.
  EXPECT_EQ(server_->codec.Decode(answer.tokens, true)->size(), end + stop.size());
  EXPECT_EQ(answer.messages.back().usage().completion_tokens(), answer.tokens.size());
  EXPECT_EQ(answer.tokens, std::vector<int32_t>(tokens.begin(), tokens.begin() + answer.tokens.size()));
}

TEST_F(ServicesTest, StopTokenEndsTheStream) {
  Start();
  v1::GenerateRequest request = MakeRequest({4, 5}, 100);
  const std::vector<int32_t> tokens = ExpectedTokens(request);
  request.mutable_stopping()->add_stop_token_ids(tokens[10]);
  Call call(server_.get(), request);
  EXPECT_EQ(call.ReadAll().finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(call.answer.tokens.back(), tokens[10]);
  EXPECT_EQ(call.answer.messages.back().stop_token_id(), tokens[10]);
}

TEST_F(ServicesTest, AbortEndsTheStreamWithWhatThereIs) {
  Start();
  server_->gate.Close();
  v1::GenerateRequest request = MakeRequest({1}, 1000);
  request.set_request_id("a");
  Call call(server_.get(), request);
  server_->gate.Allow(1);
  ASSERT_TRUE(call.ReadOne());

  grpc::ClientContext context;
  v1::AbortRequest abort;
  abort.add_request_ids("a");
  abort.add_request_ids("unknown");
  v1::AbortResponse aborted;
  ASSERT_TRUE(server_->control_stub->Abort(&context, abort, &aborted).ok());
  ASSERT_EQ(aborted.aborted_size(), 1);
  EXPECT_EQ(aborted.aborted(0), "a");
  server_->gate.Open();
  const Answer& answer = call.ReadAll();
  EXPECT_TRUE(answer.status.ok());
  EXPECT_EQ(answer.finish_reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_GE(answer.tokens.size(), 1u);
  EXPECT_LE(answer.tokens.size(), 3u);
}

TEST_F(ServicesTest, AbortReachesARequestThatWaits) {
  Start({.max_running = 1});
  server_->gate.Close();
  Call running(server_.get(), MakeRequest({1}, 5));
  server_->gate.Allow(1);
  ASSERT_TRUE(running.ReadOne());
  v1::GenerateRequest request = MakeRequest({1}, 5);
  request.set_request_id("waiting");
  Call waiting(server_.get(), request);
  v1::AbortRequest abort;
  abort.add_request_ids("waiting");
  WaitUntil(
      [&] {
        grpc::ClientContext context;
        context.set_deadline(absl::ToChronoTime(absl::Now() + kHangLimit));
        v1::AbortResponse aborted;
        EXPECT_TRUE(server_->control_stub->Abort(&context, abort, &aborted).ok());
        return !aborted.aborted().empty();
      },
      "the server to know the request");
  server_->gate.Open();
  EXPECT_EQ(waiting.ReadAll().finish_reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_TRUE(waiting.answer.tokens.empty());
  EXPECT_EQ(waiting.answer.messages.back().request_id(), "waiting");
  EXPECT_EQ(running.ReadAll().finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(ServicesTest, DisconnectInMidStreamReturnsTheLease) {
  Start();
  server_->gate.Close();
  Call call(server_.get(), MakeRequest({1}, 9000));
  server_->gate.Allow(1);
  ASSERT_TRUE(call.ReadOne());
  ExpectBytesAddUp(server_->Load(), /*num_leases=*/1);
  call.context.TryCancel();
  EXPECT_LT(StepUntilIdle(9000), 9000) << "it ran to its end";
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::CANCELLED);
  ExpectBytesAddUp(server_->Load(), /*num_leases=*/0);
}

TEST_F(ServicesTest, DisconnectOfACompleteReturnsTheLease) {
  Start();
  server_->gate.Close();
  grpc::ClientContext context;
  v1::GenerateResponse response;
  grpc::Status status;
  std::thread client([&] { status = server_->inference_stub->Complete(&context, MakeRequest({1}, 9000), &response); });
  WaitUntil([this] { return server_->Load().running() + server_->Load().waiting() > 0; }, "the request to be known");
  context.TryCancel();
  EXPECT_LT(StepUntilIdle(9000), 9000);
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServicesTest, DeadlineEndsTheRequest) {
  TryLonger(
      [this](absl::Duration time) {
        Start();  // an engine that has measured no step does not refuse the request for its deadline
        server_->gate.Close();
        const absl::Time deadline = absl::Now() + time;
        Call call(server_.get(), MakeRequest({1}, 9000), deadline);
        const bool runs = HoldsBefore(deadline, [this] { return server_->engine->GetLoad().counts.num_running > 0; });
        EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
        EXPECT_LT(StepUntilIdle(9000), 9000);
        return runs;
      },
      "the request to run before its deadline");
}

TEST_F(ServicesTest, FullQueueSaysWhenToComeBack) {
  Start({.max_queue = 2, .max_running = 1});
  server_->gate.Close();
  // One runs and two wait. Each is known to the engine before the next one comes.
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(std::make_unique<Call>(server_.get(), MakeRequest({1}, 4)));
    if (i == 0) {
      server_->gate.Allow(1);
      ASSERT_TRUE(calls[0]->ReadOne());
    }
    WaitUntil([&] { return server_->Load().waiting() >= i; }, "the request to wait");
  }
  Call extra(server_.get(), MakeRequest({1}, 4));
  const Answer& answer = extra.ReadAll();
  ASSERT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << answer.status.error_message();
  const auto& trailers = extra.context.GetServerTrailingMetadata();
  const auto retry = trailers.find("retry-after-ms");
  ASSERT_NE(retry, trailers.end());
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(answer.status.error_details()));
  EXPECT_EQ(details.code(), answer.status.error_code());
  EXPECT_EQ(details.message(), answer.status.error_message());
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "QUEUE_FULL");
  EXPECT_EQ(info.domain(), "berth");
  EXPECT_EQ(info.metadata().at("setting"), "max_queue");
  EXPECT_EQ(info.metadata().at("limit"), "2");
  EXPECT_EQ(info.metadata().at("value"), "3");
  EXPECT_FALSE(info.metadata().contains("tenant"));
  google::rpc::RetryInfo retry_info;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry_info));
  EXPECT_EQ(std::string(retry->second.data(), retry->second.size()),
            absl::StrCat(retry_info.retry_delay().seconds() * 1000 + retry_info.retry_delay().nanos() / 1000000));
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(pushback->second, retry->second);
  server_->gate.Open();
  for (const auto& call : calls) EXPECT_TRUE(call->ReadAll().status.ok());
}

TEST_F(ServicesTest, RefusesAnIdThatIsUnderWayAndTakesItAgainAfterwards) {
  Start();
  server_->gate.Close();
  v1::GenerateRequest request = MakeRequest({1}, 2);
  request.set_request_id("same");
  Call first(server_.get(), request);
  server_->gate.Allow(1);
  ASSERT_TRUE(first.ReadOne());
  Call second(server_.get(), request);
  EXPECT_EQ(second.ReadAll().status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  server_->gate.Open();
  EXPECT_TRUE(first.ReadAll().status.ok());
  Call third(server_.get(), request);
  EXPECT_TRUE(third.ReadAll().status.ok());
}

TEST_F(ServicesTest, ConcurrentStreamsEachGetExactlyTheirTokens) {
  Start();
  constexpr int kStreams = 64;
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kStreams; ++i) {
    requests.push_back(MakeRequest({i % 90, 2 * i % 90, 3}, 20 + i, /*seed=*/i));
    calls.push_back(std::make_unique<Call>(server_.get(), requests.back()));
  }
  std::vector<std::thread> readers;
  for (auto& call : calls) readers.emplace_back([&call] { call->ReadAll(); });
  for (std::thread& reader : readers) reader.join();
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_TRUE(calls[i]->answer.status.ok());
    EXPECT_EQ(calls[i]->answer.tokens, ExpectedTokens(requests[i]));
  }
}

TEST_F(ServicesTest, ResetStormLeaksNothing) {
  Start({.max_queue = 64, .max_running = 8});
  for (int i = 0; i < 500; ++i) {
    Call call(server_.get(), MakeRequest({1, 2, 3}, 9000));
    if (i % 3 == 0) call.ReadOne();
    call.context.TryCancel();
    call.ReadAll();
  }
  const v1::GenerateRequest request = MakeRequest({1}, 5);
  Call after(server_.get(), request);
  EXPECT_EQ(after.ReadAll().tokens, ExpectedTokens(request));
}

TEST_F(ServicesTest, DrainingRefusesNewRequestsAndEndsTheRestWhenTold) {
  Start();
  server_->gate.Close();
  Call running(server_.get(), MakeRequest({1}, 9000));
  server_->gate.Allow(1);
  ASSERT_TRUE(running.ReadOne());
  server_->engine->Drain();
  server_->control->SetDraining();
  Call late(server_.get(), MakeRequest({1}, 5));
  EXPECT_EQ(late.ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(server_->Load().draining());
  server_->intake->EndAll();
  server_->gate.Open();
  EXPECT_EQ(running.ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServicesTest, FailedStepIsAnInternalError) {
  Start();
  server_->step_status = absl::InternalError("device lost");
  Call call(server_.get(), MakeRequest({1}, 5));
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_NE(call.answer.status.error_message().find("device lost"), std::string::npos)
      << call.answer.status.error_message();
  ASSERT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
}

TEST_F(ServicesTest, InvalidRequestsAreRefusedOnTheWire) {
  Start();
  v1::GenerateRequest request = MakeRequest({1}, 5);
  request.mutable_sampling()->set_temperature(-1);
  Call wrong(server_.get(), request);
  EXPECT_EQ(wrong.ReadAll().status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(wrong.answer.status.error_message(), "sampling.temperature: -1 is outside [0, 100]");
  Call too_long(server_.get(), MakeRequest({1}, 10000));
  EXPECT_EQ(too_long.ReadAll().status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Call exactly(server_.get(), MakeRequest(std::vector<int32_t>(9999, 1), 1));
  EXPECT_TRUE(exactly.ReadAll().status.ok()) << exactly.answer.status.error_message();
  grpc::ClientContext context;
  v1::GenerateResponse response;
  EXPECT_EQ(server_->inference_stub->Complete(&context, v1::GenerateRequest(), &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServicesTest, UnknownFieldsAreIgnored) {
  Start();
  v1::GenerateRequest request = MakeRequest({1}, 5);
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(1234, 1);
  Call call(server_.get(), request);
  EXPECT_EQ(call.ReadAll().tokens, ExpectedTokens(request));
}

TEST_F(ServicesTest, TokenizeAndDetokenize) {
  Start();
  grpc::ClientContext context;
  v1::TokenizeRequest text;
  text.set_text("ab");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(server_->inference_stub->Tokenize(&context, text, &tokens).ok());
  EXPECT_EQ(tokens.token_ids_size(), 3);
  grpc::ClientContext back;
  v1::DetokenizeRequest ids;
  *ids.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse detokenized;
  ASSERT_TRUE(server_->inference_stub->Detokenize(&back, ids, &detokenized).ok());
  EXPECT_EQ(detokenized.text(), "ab");
}

TEST_F(ServicesTest, ControlTellsWhatTheServerIs) {
  Start();
  grpc::ClientContext context;
  v1::GetModelInfoResponse model;
  ASSERT_TRUE(server_->control_stub->GetModelInfo(&context, {}, &model).ok());
  EXPECT_EQ(model.name(), "fake");
  EXPECT_EQ(model.vocab_size(), 100);
  EXPECT_EQ(model.limits().max_sequence_tokens(), 10000);
  ASSERT_EQ(model.cache_groups_size(), 2);
  EXPECT_EQ(model.cache_groups(0).kind(), "static");
  EXPECT_EQ(model.cache_groups(0).bytes_per_token() * model.cache_groups(0).block_tokens(),
            model.cache_groups(0).unit_bytes());
  EXPECT_EQ(model.cache_groups(0).bytes_per_sequence(), 0);
  EXPECT_EQ(model.cache_groups(0).dtype(), "float32");
  EXPECT_EQ(model.cache_groups(1).kind(), "recurrent");
  EXPECT_EQ(model.cache_groups(1).bytes_per_token(), 0);
  EXPECT_EQ(model.cache_groups(1).dtype(), "");
  EXPECT_EQ(model.cache_groups(1).bytes_per_sequence(), model.cache_groups(1).unit_bytes());
  grpc::ClientContext second;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(server_->control_stub->GetServerInfo(&second, {}, &info).ok());
  EXPECT_EQ(info.version(), "test");
  EXPECT_FALSE(info.draining());
}

TEST_F(ServicesTest, AbortIsBounded) {
  Start();
  v1::AbortRequest abort;
  for (int i = 0; i < 1024; ++i) abort.add_request_ids(absl::StrCat(i));
  v1::AbortResponse aborted;
  grpc::ClientContext fine;
  EXPECT_TRUE(server_->control_stub->Abort(&fine, abort, &aborted).ok());
  EXPECT_TRUE(aborted.aborted().empty());
  abort.add_request_ids("more");
  grpc::ClientContext over;
  EXPECT_EQ(server_->control_stub->Abort(&over, abort, &aborted).error_message(),
            "request_ids: 1025 entries are over the limit of 1024");
}

}  // namespace
}  // namespace berth
