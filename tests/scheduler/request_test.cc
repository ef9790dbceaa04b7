#include "scheduler/request.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

Request GoodRequest() {
  Request request;
  request.prompt = {1, 2, 99};
  request.max_tokens = 7;
  return request;
}

void ExpectRefused(const Request& request, absl::string_view message) {
  const absl::Status status = ValidateRequest(request, /*vocab_size=*/100, /*max_sequence_tokens=*/10);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), message);
}

TEST(ValidateRequest, AcceptsWhatJustFits) { EXPECT_TRUE(ValidateRequest(GoodRequest(), 100, 10).ok()); }

TEST(ValidateRequest, ChecksWhatTheEncoderReads) {
  Request request = GoodRequest();
  request.encoder_tokens.assign(5, 1);
  EXPECT_TRUE(ValidateRequest(request, 100, 10, /*max_encoder_tokens=*/5).ok());
  ExpectRefused(request, "encoder_tokens has 5 tokens; the model has no encoder");
  EXPECT_EQ(ValidateRequest(request, 100, 10, 4).message(), "encoder_tokens has 5 tokens, outside [1, 4]");
  EXPECT_EQ(ValidateRequest(GoodRequest(), 100, 10, 4).message(), "encoder_tokens has 0 tokens, outside [1, 4]");
  request.encoder_tokens[4] = 100;
  EXPECT_EQ(ValidateRequest(request, 100, 10, 5).message(),
            "encoder_tokens has token 100, outside the vocabulary of 100");
  request = GoodRequest();
  request.forced_last = {3, -1};
  ExpectRefused(request, "forced_last has token -1, outside the vocabulary of 100");
}

TEST(ValidateRequest, NamesWhatIsWrong) {
  Request request = GoodRequest();
  request.prompt.clear();
  ExpectRefused(request, "prompt has no token; at least 1 is needed");

  request = GoodRequest();
  request.max_tokens = 0;
  ExpectRefused(request, "max_tokens is 0; at least 1 is needed");

  request.max_tokens = 8;
  ExpectRefused(request, "prompt of 3 tokens and max_tokens of 8 exceed max_sequence_tokens of 10");

  request.max_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(ValidateRequest(request, 100, 10).ok());

  request = GoodRequest();
  request.prompt[1] = -1;
  ExpectRefused(request, "prompt has token -1, outside the vocabulary of 100");
  request.prompt[1] = 100;
  ExpectRefused(request, "prompt has token 100, outside the vocabulary of 100");

  request = GoodRequest();
  request.prompt_logprobs = 101;
  ExpectRefused(request, "prompt_logprobs is 101, over the vocabulary of 100");

  request = GoodRequest();
  request.sampling.logit_bias = {{5, 1.0f}, {100, 1.0f}};
  ExpectRefused(request, "logit_bias has token 100, outside the vocabulary of 100");
}

TEST(ValidateRequest, AnEmbeddingHasNoOutput) {
  Request request = GoodRequest();
  request.prompt.assign(10, 1);
  request.max_tokens = 0;
  request.pooling = Pooling::kMean;
  EXPECT_TRUE(ValidateRequest(request, 100, 10).ok());
  EXPECT_EQ(ValidateRequest(request, 100, 9).message(),
            "prompt of 10 tokens and max_tokens of 0 exceed max_sequence_tokens of 9");
  const Request good = request;
  const auto refused = [&](absl::string_view what) {
    ExpectRefused(request, absl::StrCat("an embedding cannot be combined with ", what));
    request = good;
  };
  request.max_tokens = 1;
  refused("max_tokens above 0");
  request.num_outputs = 2;
  refused("several outputs");
  request.encoder_tokens = {1};
  refused("an encoder");
  request.prompt_logprobs = 0;
  refused("prompt_logprobs");
  request.saved = true;
  refused("a session");
  request.progress = std::make_shared<Progress>();
  refused("progress");
}

TEST(FinishReasonName, NamesEachReason) {
  EXPECT_EQ(FinishReasonName(FinishReason::kStop), "stop");
  EXPECT_EQ(FinishReasonName(FinishReason::kLength), "length");
  EXPECT_EQ(FinishReasonName(FinishReason::kCancelled), "cancelled");
  EXPECT_EQ(FinishReasonName(FinishReason::kDeadline), "deadline");
  EXPECT_EQ(FinishReasonName(FinishReason::kError), "error");
}

}  // namespace
}  // namespace berth
