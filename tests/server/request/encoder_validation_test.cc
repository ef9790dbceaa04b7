// What goes to an encoder, what to the decoder, and what a model without an encoder refuses.
#include <gtest/gtest.h>

#include <string>

#include "tests/server/request/validation_test.h"

namespace berth {
namespace {

class EncoderDecoderValidationTest : public ValidationTest {
 protected:
  EncoderDecoderValidationTest() {
    context_.limits.max_encoder_tokens = 20;
    context_.defaults.decoder_start_token_id = 95;
  }
};

TEST_F(EncoderDecoderValidationTest, ThePromptGoesToTheEncoder) {
  SetPrompt(20);
  const absl::StatusOr<ValidatedRequest> valid = Validate();
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->request.encoder_tokens, std::vector<int32_t>(20, 1));
  EXPECT_EQ(valid->request.prompt, std::vector<int32_t>{95});
  EXPECT_TRUE(valid->request.forced_first.empty());
  EXPECT_TRUE(valid->request.forced_last.empty());
  EXPECT_TRUE(valid->output.text.context.empty());
  SetPrompt(21);
  EXPECT_EQ(Message(), "prompt: 21 tokens are over the limit of 20 tokens for the encoder");
  EXPECT_EQ(Validate().status().code(), absl::StatusCode::kOutOfRange);
  SetPrompt(0);
  EXPECT_EQ(Message(), "prompt: 0 tokens; at least 1 is needed");
}

TEST_F(EncoderDecoderValidationTest, TheLengthIsTheDecoders) {
  SetPrompt(20);
  request_.mutable_stopping()->set_max_tokens(63);
  EXPECT_EQ(Message(), "");
  request_.mutable_stopping()->set_max_tokens(64);
  EXPECT_EQ(Message(),
            "decoder_token_ids: 1 tokens and stopping.max_tokens 64 exceed the limit of 64 tokens for prompt and "
            "output");
}

TEST_F(EncoderDecoderValidationTest, TheDecoderStartsWithItsStartToken) {
  request_.mutable_decoder_token_ids()->add_ids(7);
  EXPECT_EQ(Validate()->request.prompt, (std::vector<int32_t>{95, 7}));
  EXPECT_EQ(Validate()->output.text.context, (std::vector<int32_t>{95, 7}));
  request_.mutable_decoder_token_ids()->set_ids(0, 95);
  EXPECT_EQ(Validate()->request.prompt, std::vector<int32_t>{95});
  request_.mutable_decoder_token_ids()->set_ids(0, 100);
  EXPECT_EQ(Message(), "decoder_token_ids.ids[0]: token id 100 is outside [0, 99]");
  request_.mutable_decoder_token_ids()->clear_ids();
  EXPECT_EQ(Message(), "decoder_token_ids: 0 tokens; at least 1 is needed");
  request_.clear_decoder_token_ids();
  context_.defaults.decoder_start_token_id.reset();
  EXPECT_EQ(Message(), "decoder_token_ids: required, because the model has no decoder_start_token_id");
  request_.mutable_decoder_token_ids()->add_ids(7);
  EXPECT_EQ(Validate()->request.prompt, std::vector<int32_t>{7});
}

TEST_F(EncoderDecoderValidationTest, ForcedTokensAreTheModelsOrTheRequests) {
  context_.defaults.forced_bos_token_id = 96;
  context_.defaults.forced_eos_token_ids = {98, 99};
  EXPECT_EQ(Validate()->request.forced_first, std::vector<int32_t>{96});
  EXPECT_EQ(Validate()->request.forced_last, (std::vector<int32_t>{98, 99}));
  request_.set_forced_bos_token_id(0);
  EXPECT_EQ(Validate()->request.forced_first, std::vector<int32_t>{0});
  request_.set_forced_bos_token_id(100);
  EXPECT_EQ(Message(), "forced_bos_token_id: token id 100 is outside [0, 99]");
  request_.set_forced_bos_token_id(-1);
  EXPECT_EQ(Message(), "forced_bos_token_id: token id -1 is outside [0, 99]");
  request_.set_forced_bos_token_id(5);
  request_.mutable_decoder_token_ids()->add_ids(7);
  EXPECT_EQ(Message(), "forced_bos_token_id: 5 needs a decoder prompt of 1 token; this one has 2");
  request_.clear_forced_bos_token_id();
  EXPECT_TRUE(Validate()->request.forced_first.empty()) << "the model's own is for a lone start token";
}

TEST_F(ValidationTest, AModelWithoutAnEncoderTakesNoDecoderFields) {
  model_.model_type = "llama";
  context_.defaults.forced_eos_token_ids = {99};
  EXPECT_EQ(Validate()->request.forced_last, std::vector<int32_t>{99}) << "generate() forces it for every model";
  request_.set_forced_bos_token_id(5);
  EXPECT_EQ(Message(), "forced_bos_token_id: is only for encoder-decoder models; llama has no encoder");
  request_.mutable_decoder_token_ids()->add_ids(7);
  EXPECT_EQ(Message(), "decoder_token_ids: is only for encoder-decoder models; llama has no encoder");
}

}  // namespace
}  // namespace berth
