// The fixture of the validation tests: a valid request, its limits, a tokenizer of letters.
#ifndef BERTH_TESTS_SERVER_REQUEST_VALIDATION_TEST_H_
#define BERTH_TESTS_SERVER_REQUEST_VALIDATION_TEST_H_

#include <gtest/gtest.h>

#include <string>

#include "server/request/validation.h"
#include "tests/server/delivery/fake_text_codec.h"

namespace berth {

class ValidationTest : public ::testing::Test {
 protected:
  ValidationTest() {
    model_.vocab_size = kFakeVocabSize;
    model_.eos_token_ids = {99};
    context_.model = &model_;
    context_.text = &codec_;
    context_.limits = {.max_sequence_tokens = 64, .default_max_tokens = 16, .max_logprobs = 5, .max_text_bytes = 4096};
    request_.mutable_token_ids()->add_ids(1);
  }

  absl::StatusOr<ValidatedRequest> Validate() { return ValidateGenerate(request_, context_, /*random_seed=*/77); }
  // "" when the request is fine.
  std::string Message() { return std::string(Validate().status().message()); }
  void SetPrompt(int num_tokens) {
    request_.mutable_token_ids()->mutable_ids()->Clear();
    for (int i = 0; i < num_tokens; ++i) request_.mutable_token_ids()->add_ids(1);
  }

  ModelInfo model_;
  FakeTextCodec codec_;
  ValidationContext context_;
  v1::GenerateRequest request_;
};

}  // namespace berth

#endif  // BERTH_TESTS_SERVER_REQUEST_VALIDATION_TEST_H_
