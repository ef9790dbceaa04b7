// The messages of VllmEngine.Embed.
#include "server/vllm/embed_messages.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/server/request/validation_test.h"

namespace berth {
namespace {

namespace engine = ::vllm::grpc::engine;

class EmbedMessagesTest : public ValidationTest {
 protected:
  EmbedMessagesTest() { in_.mutable_tokenized()->add_input_ids(7); }
  std::string TranslationError() { return std::string(ToBerth(in_, context_).status().message()); }

  engine::EmbedRequest in_;
};

TEST_F(EmbedMessagesTest, AsksForTheLastStateNormalised) {
  in_.set_request_id("r");
  const absl::StatusOr<v1::EmbedRequest> out = ToBerth(in_, context_);
  ASSERT_TRUE(out.ok()) << out.status();
  const absl::StatusOr<ValidatedRequest> valid = ValidateEmbed(*out, context_);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->request_id, "r");
  EXPECT_EQ(valid->request.prompt, std::vector<int32_t>{7});
  EXPECT_EQ(valid->request.pooling, Pooling::kLast);
  EXPECT_TRUE(valid->output.normalize);
}

TEST_F(EmbedMessagesTest, RefusesWhatIsNoPrompt) {
  in_.mutable_tokenized()->add_input_ids(std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(TranslationError(), "tokenized.input_ids[1]: token id 4294967295 is outside [0, 99]");
  in_.clear_tokenized();
  EXPECT_EQ(TranslationError(), "tokenized: not set; at least 1 token is needed");
  in_.mutable_tokenized();
  EXPECT_EQ(ValidateEmbed(*ToBerth(in_, context_), context_).status().message(),
            "prompt: 0 tokens; at least 1 is needed");
}

TEST_F(EmbedMessagesTest, TheAnswerHasTheLengths) {
  v1::GenerateResponse end;
  end.mutable_usage()->set_prompt_tokens(9);
  const engine::EmbedResponse out = EmbedResponseOf({1, 2, 3}, end);
  EXPECT_EQ(out.embedding_size(), 3);
  EXPECT_EQ(out.embedding(2), 3);
  EXPECT_EQ(out.embedding_dim(), 3u);
  EXPECT_EQ(out.prompt_tokens(), 9u);
}

}  // namespace
}  // namespace berth
