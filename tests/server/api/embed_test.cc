// Embeddings: what a request for one may say, and what comes of it through gRPC.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/api/fake_identities.h"
#include "tests/server/api/test_server.h"
#include "tests/server/request/validation_test.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

v1::EmbedRequest MakeRequest(const std::vector<int32_t>& prompt, v1::Pooling pooling = v1::POOLING_LAST) {
  v1::EmbedRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.set_pooling(pooling);
  return request;
}

class EmbedValidationTest : public ValidationTest {
 protected:
  absl::StatusOr<ValidatedRequest> ValidateEmbedding() { return ValidateEmbed(embed_, context_); }
  // "" when the request is fine.
  std::string EmbedMessage() { return std::string(ValidateEmbedding().status().message()); }

  v1::EmbedRequest embed_ = MakeRequest({1});
};

TEST_F(EmbedValidationTest, TheDefaultsAreTheLastTokenNormalised) {
  embed_.clear_pooling();
  context_.defaults.temperature = 0.5f;
  context_.limits.default_draft_tokens = 4;
  const absl::StatusOr<ValidatedRequest> valid = ValidateEmbedding();
  ASSERT_TRUE(valid.ok()) << valid.status();
  Request expected;
  expected.prompt = {1};
  expected.pooling = Pooling::kLast;
  EXPECT_EQ(valid->request, expected);
  EXPECT_TRUE(valid->output.normalize);
}

TEST_F(EmbedValidationTest, ReadsEveryField) {
  // By field: a value, and whether it shows in what was read.
  using Valid = ValidatedRequest;
  struct Case {
    const char* field;
    std::function<void(v1::EmbedRequest*)> set;
    std::function<bool(const Valid&)> shows;
  };
  const std::vector<Case> cases = {
      {"request_id", [](auto* r) { r->set_request_id("r"); }, [](const Valid& v) { return v.request_id == "r"; }},
      {"prompt", [](auto* r) { r->set_prompt("ab"); },
       [](const Valid& v) {
         return v.request.prompt == std::vector<int32_t>{kFakeBos, 'a' - ' ', 'b' - ' '};
       }},
      {"token_ids", [](auto* r) { r->mutable_token_ids()->add_ids(7); },
       [](const Valid& v) {
         return v.request.prompt == std::vector<int32_t>{1, 7};
       }},
      {"add_special_tokens",
       [](auto* r) {
         r->set_prompt("a");
         r->set_add_special_tokens(false);
       },
       [](const Valid& v) { return v.request.prompt == std::vector<int32_t>{'a' - ' '}; }},
      {"pooling", [](auto* r) { r->set_pooling(v1::POOLING_MEAN); },
       [](const Valid& v) { return v.request.pooling == Pooling::kMean; }},
      {"normalize", [](auto* r) { r->set_normalize(false); }, [](const Valid& v) { return !v.output.normalize; }},
      {"share_prefix", [](auto* r) { r->set_share_prefix(false); },
       [](const Valid& v) { return !v.request.share_prefix; }},
      {"cache_salt", [](auto* r) { r->set_cache_salt("t"); },
       [](const Valid& v) { return v.request.cache_salt == "t"; }},
      {"priority", [](auto* r) { r->set_priority(-7); }, [](const Valid& v) { return v.request.priority == -7; }},
  };
  EXPECT_EQ(static_cast<int>(cases.size()), v1::EmbedRequest::descriptor()->field_count());
  for (const Case& c : cases) {
    EXPECT_NE(v1::EmbedRequest::descriptor()->FindFieldByName(c.field), nullptr) << c.field;
    EXPECT_FALSE(c.shows(*ValidateEmbedding())) << c.field;
    embed_ = MakeRequest({1});
    c.set(&embed_);
    const absl::StatusOr<ValidatedRequest> valid = ValidateEmbedding();
    ASSERT_TRUE(valid.ok()) << c.field << ": " << valid.status();
    EXPECT_TRUE(c.shows(*valid)) << c.field;
    embed_ = MakeRequest({1});
  }
}

TEST_F(EmbedValidationTest, NamesFieldValueAndLimit) {
  const auto refused = [this](const std::string& message, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    EXPECT_EQ(EmbedMessage(), message);
    EXPECT_EQ(ValidateEmbedding().status().code(), code);
    embed_ = MakeRequest({1});
  };
  embed_.clear_input();
  refused("input: none of prompt, token_ids is set");
  embed_.mutable_token_ids()->clear_ids();
  refused("prompt: 0 tokens; at least 1 is needed");
  embed_.mutable_token_ids()->add_ids(100);
  refused("token_ids.ids[1]: token id 100 is outside [0, 99]");
  embed_.set_pooling(static_cast<v1::Pooling>(2));
  refused("pooling: 2 is outside [0, 1]");
  embed_.set_priority(101);
  refused("priority: 101 is outside [-100, 100]");
  embed_.set_cache_salt(std::string(129, 'a'));
  refused("cache_salt: 129 characters are outside [1, 128]");
  embed_.set_add_special_tokens(true);
  refused("add_special_tokens: can be set only with prompt");
  embed_ = MakeRequest(std::vector<int32_t>(64, 1));
  EXPECT_EQ(EmbedMessage(), "") << "no place is needed for an output";
  embed_ = MakeRequest(std::vector<int32_t>(65, 1));
  refused("prompt: 65 tokens exceed the limit of 64 tokens", absl::StatusCode::kOutOfRange);
}

TEST_F(EmbedValidationTest, AnEncoderDecoderModelHasNone) {
  context_.limits.max_encoder_tokens = 20;
  model_.model_type = "t5";
  EXPECT_EQ(EmbedMessage(), "input: embeddings are for models without an encoder; t5 has one");
}

// The embedding that the model without weights gives a prompt alone.
std::vector<float> Expected(const v1::EmbedRequest& in) {
  Request request;
  request.prompt.assign(in.token_ids().ids().begin(), in.token_ids().ids().end());
  request.pooling = in.pooling() == v1::POOLING_MEAN ? Pooling::kMean : Pooling::kLast;
  return FakeModelRunner::EmbeddingOf(request);
}

class EmbedTest : public ::testing::Test {
 protected:
  void Start(const TestServer::Options& options = {}) { server_ = std::make_unique<TestServer>(options); }
  void TearDown() override {
    server_->gate.Open();
    EXPECT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
    server_->server->Shutdown(absl::ToChronoTime(absl::Now() + kHangLimit));
    EXPECT_EQ(server_->registry.size(), 0);
    Admission::Totals held = server_->admission.totals();
    held.accounts = 0;  // of tenants whose rates are not full again
    EXPECT_EQ(held, Admission::Totals());
    EXPECT_EQ(server_->engine->GetLoad().occupancy.num_leases, 0);
    EXPECT_EQ(server_->runner.mismatch(), "");
  }
  grpc::Status Embed(
      const v1::EmbedRequest& request, v1::EmbedResponse* response,
      const std::function<void(grpc::ClientContext*)>& prepare = [](grpc::ClientContext*) {}) {
    grpc::ClientContext context;
    prepare(&context);
    return server_->inference_stub->Embed(&context, request, response);
  }
  // Returns once nothing is left of the calls that have ended.
  void WaitUntilGone() {
    WaitUntil([this] { return server_->registry.size() == 0; }, "the requests to leave the registry");
    ASSERT_TRUE(server_->engine->WaitUntilIdle(kHangLimit));
  }
  // Makes the call on another thread. Acts once it is under way, and before any step. Returns how it ended.
  grpc::Status EmbedWhile(v1::EmbedRequest request, const std::function<void(grpc::ClientContext*)>& act) {
    request.set_request_id("held");
    server_->gate.Close();
    grpc::ClientContext context;
    grpc::Status status;
    v1::EmbedResponse response;
    std::thread call([&] { status = server_->inference_stub->Embed(&context, request, &response); });
    WaitUntil([this] { return server_->registry.size() > 0; }, "the request to be registered");
    act(&context);
    server_->gate.Open();
    call.join();
    return status;
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(EmbedTest, ReturnsTheStatesOfTheModel) {
  Start();
  std::vector<int32_t> prompt;
  for (int i = 0; i < 300; ++i) prompt.push_back(i * 7 % 100);
  for (const v1::Pooling pooling : {v1::POOLING_LAST, v1::POOLING_MEAN}) {
    v1::EmbedRequest request = MakeRequest(prompt, pooling);
    request.set_request_id("e");
    request.set_normalize(false);
    v1::EmbedResponse response;
    ASSERT_TRUE(Embed(request, &response).ok());
    EXPECT_EQ(response.request_id(), "e");
    EXPECT_EQ(std::vector<float>(response.embedding().begin(), response.embedding().end()), Expected(request));
    EXPECT_EQ(response.usage().prompt_tokens(), 300u);
    EXPECT_EQ(response.usage().completion_tokens(), 0u);
    EXPECT_TRUE(response.has_timings());
    EXPECT_GT(response.timings().prefill_seconds(), 0);

    request.clear_normalize();
    v1::EmbedResponse normalised;
    ASSERT_TRUE(Embed(request, &normalised).ok());
    double squares = 0;
    for (const float x : response.embedding()) squares += static_cast<double>(x) * x;
    ASSERT_EQ(normalised.embedding_size(), response.embedding_size());
    for (int i = 0; i < response.embedding_size(); ++i) {
      EXPECT_EQ(normalised.embedding(i), static_cast<float>(response.embedding(i) / std::sqrt(squares)));
    }
  }
}

TEST_F(EmbedTest, TextIsTokenisedAndPrefixesAreShared) {
  Start({.share_prefixes = true});
  v1::EmbedRequest request;
  request.set_prompt("a text of some letters");
  v1::EmbedResponse first, longer, alone, mean;
  ASSERT_TRUE(Embed(request, &first).ok());
  EXPECT_EQ(first.usage().prompt_tokens(), 23u);
  EXPECT_EQ(first.usage().cached_tokens(), 0u);
  request.set_prompt("a text of some letters, and more");
  ASSERT_TRUE(Embed(request, &longer).ok());
  EXPECT_EQ(longer.usage().cached_tokens(), 23u);
  request.set_pooling(v1::POOLING_MEAN);
  ASSERT_TRUE(Embed(request, &mean).ok());
  EXPECT_EQ(mean.usage().cached_tokens(), 0u);
  request.set_pooling(v1::POOLING_LAST);
  request.set_share_prefix(false);
  ASSERT_TRUE(Embed(request, &alone).ok());
  EXPECT_EQ(std::vector<float>(longer.embedding().begin(), longer.embedding().end()),
            std::vector<float>(alone.embedding().begin(), alone.embedding().end()));
}

TEST_F(EmbedTest, EndsAsOtherRequestsDo) {
  const v1::EmbedRequest request = MakeRequest(std::vector<int32_t>(5000, 1));  // of several steps
  v1::EmbedResponse response;
  TryLonger(
      [&](absl::Duration time) {
        Start();  // an engine that has measured no step does not refuse the request for its deadline
        server_->gate.Close();
        const absl::Time deadline = absl::Now() + time;
        std::future<grpc::Status> late = std::async(std::launch::async, [&] {
          return Embed(request, &response,
                       [&](grpc::ClientContext* context) { context->set_deadline(absl::ToChronoTime(deadline)); });
        });
        const bool runs = HoldsBefore(deadline, [this] { return server_->engine->GetLoad().counts.num_running > 0; });
        EXPECT_EQ(late.get().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
        return runs;
      },
      "the request to run before its deadline");
  server_->gate.Open();
  WaitUntilGone();
  grpc::Status status = EmbedWhile(request, [this](grpc::ClientContext*) {
    v1::EmbedResponse response;
    v1::EmbedRequest same = MakeRequest({1});
    same.set_request_id("held");
    EXPECT_EQ(Embed(same, &response).error_code(), grpc::StatusCode::ALREADY_EXISTS);
    grpc::ClientContext context;
    v1::AbortRequest abort;
    abort.add_request_ids("held");
    v1::AbortResponse aborted;
    ASSERT_TRUE(server_->control_stub->Abort(&context, abort, &aborted).ok());
    EXPECT_EQ(aborted.aborted_size(), 1);
  });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(status.error_message(), "the request was aborted");
  WaitUntilGone();
  status = EmbedWhile(request, [](grpc::ClientContext* context) { context->TryCancel(); });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  WaitUntilGone();
  server_->step_status = absl::InternalError("failed");
  EXPECT_EQ(Embed(request, &response).error_code(), grpc::StatusCode::INTERNAL);
  server_->step_status = absl::OkStatus();
  EXPECT_TRUE(Embed(request, &response).ok());
  server_->engine->Drain();
  EXPECT_EQ(Embed(request, &response).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(EmbedTest, TheTenantPaysForThePromptAlone) {
  static const FakeIdentities identities;
  Start({.tenants = R"({"tenants": [{"name": "a", "queued_tokens": 3, "cache_bytes": 3, "running_sequences": 1},
                                    {"name": "b", "requests_per_second": 0.001}]})",
         .identities = &identities});
  const auto as = [](const std::string& tenant) {
    return [tenant](grpc::ClientContext* context) { CallAs(tenant, "user", context); };
  };
  v1::EmbedResponse response;
  EXPECT_EQ(Embed(MakeRequest({1, 2, 3, 4}), &response, as("a")).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Embed(MakeRequest({1, 2, 3}), &response, as("a")).ok());
  EXPECT_TRUE(Embed(MakeRequest({1, 2, 3}), &response, as("a")).ok()) << "the first has given all back";
  EXPECT_TRUE(Embed(MakeRequest({1, 2, 3, 4}), &response, as("b")).ok());
  EXPECT_EQ(Embed(MakeRequest({1, 2, 3, 4}), &response, as("b")).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::EmbedRequest of_another = MakeRequest({1});
  of_another.set_cache_salt("b");
  EXPECT_EQ(Embed(of_another, &response, as("a")).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(EmbedTest, IsInAnyCompanyTheSame) {
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 20; ++i) {
        v1::EmbedRequest request = MakeRequest({}, t % 2 == 0 ? v1::POOLING_LAST : v1::POOLING_MEAN);
        for (int p = 0; p <= i * 13; ++p) request.mutable_token_ids()->add_ids((t * 31 + p * 7) % 100);
        request.set_normalize(false);
        v1::EmbedResponse response;
        ASSERT_TRUE(Embed(request, &response).ok());
        EXPECT_EQ(std::vector<float>(response.embedding().begin(), response.embedding().end()), Expected(request));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(EmbedTest, AModelWithAnEncoderRefuses) {
  Start({.has_encoder = true});
  v1::EmbedResponse response;
  const grpc::Status status = Embed(MakeRequest({1}), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "input: embeddings are for models without an encoder; fake has one");
}

}  // namespace
}  // namespace berth
