// Streams of text and logprobs with the tokenizers of widespread families.
#include "server/request/model_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "server/delivery/output_assembler.h"
#include "tests/text/test_tokenizers.h"

namespace berth {
namespace {

class ModelTextTest : public ::testing::TestWithParam<TestTokenizer> {
 protected:
  void SetUp() override {
    const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / GetParam().name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "tokenizer.json") << GetParam().json;
    auto text = ModelText::Load(folder.string());
    ASSERT_TRUE(text.ok()) << text.status();
    text_ = *std::move(text);
    special_ = GetParam().end_token;
    name_ = text_->TextOf(special_, /*first=*/false).text;
  }

  std::vector<int32_t> Tokens(const std::string& text) const { return *text_->Encode(text, false, {}); }

  // What a stream gives for the tokens, up to a stop.
  TextPiece Stream(TextStreamOptions options, const std::vector<int32_t>& tokens) const {
    const std::unique_ptr<TextStream> stream = text_->NewStream(std::move(options));
    TextPiece all;
    for (int32_t token : tokens) {
      TextPiece piece = *stream->Add(token);
      all.text += piece.text;
      all.stop_string = piece.stop_string;
      all.stopped = piece.stopped;
      if (all.stopped) return all;
    }
    all.text += stream->Flush()->text;
    return all;
  }

  std::unique_ptr<ModelText> text_;
  int32_t special_ = 0;
  std::string name_;
};

TEST_P(ModelTextTest, ASpecialTokenIsAStopString) {
  std::vector<int32_t> tokens = Tokens("name");
  tokens.push_back(special_);
  tokens.push_back(special_);
  for (const bool skip : {true, false}) {
    for (const bool include : {true, false}) {
      const TextPiece piece =
          Stream({.skip_special_tokens = skip, .stop = {"xyz", name_}, .include_stop = include}, tokens);
      EXPECT_TRUE(piece.stopped);
      EXPECT_EQ(piece.stop_string, name_);
      EXPECT_EQ(piece.text, include ? "name" + name_ : "name") << "skip " << skip;
    }
    const TextPiece late = Stream(
        {.skip_special_tokens = skip, .stop = {name_}, .min_tokens = static_cast<int64_t>(tokens.size()) - 1}, tokens);
    EXPECT_TRUE(late.stopped);
    EXPECT_EQ(late.text, skip ? "name" : "name" + name_);
  }
  EXPECT_FALSE(Stream({.stop = {"xyz"}}, tokens).stopped);
}

// As vLLM does: a stop string counts if it ends in the text of a later token, wherever it begins.
TEST_P(ModelTextTest, MinTokensHoldBackStopStrings) {
  std::vector<int32_t> tokens;
  for (char c : std::string("abcabc")) tokens.push_back(text_->tokenizer()->TokenId(std::string(1, c)));
  const auto stop = [&](int64_t min_tokens) { return Stream({.stop = {"bc"}, .min_tokens = min_tokens}, tokens).text; };
  for (int64_t min_tokens : {0, 1, 2}) EXPECT_EQ(stop(min_tokens), "a") << min_tokens;
  for (int64_t min_tokens : {3, 4, 5}) EXPECT_EQ(stop(min_tokens), "abca") << min_tokens;
  EXPECT_EQ(stop(6), "abcabc");
}

TEST_P(ModelTextTest, LogprobsJoinToTheOutput) {
  std::mt19937 random(3);
  const std::vector<int32_t> split = Tokens("\u8a9e");  // a character of several tokens; t5's unknown token
  int64_t num_parts = 0;
  for (int round = 0; round < 100; ++round) {
    OutputOptions options;
    options.logprobs = true;
    if (round % 2 == 0) options.text.context = Tokens("name");
    if (round % 3 == 0) options.text.skip_special_tokens = false;
    std::vector<int32_t> tokens;
    while (tokens.size() < 12) {
      const auto any = static_cast<int32_t>(random() % GetParam().bytes.size());
      if (random() % 4 == 0) {
        tokens.insert(tokens.end(), split.begin(), split.end());
      } else if (text_->TextOf(any, /*first=*/false).bytes.empty()) {
        tokens.push_back(any);
      }
    }
    OutputAssembler assembler(text_.get(), options, /*num_prompt_tokens=*/1);
    v1::GenerateResponse message;
    std::string joined;
    for (int32_t token : tokens) {
      TokenEvent event;
      event.token = token;
      event.top = {{.token = token, .logprob = -1}};
      ASSERT_TRUE(assembler.AddToken(event, &message).ok());
      const v1::TokenLogprobs& entry = *message.logprobs().rbegin();
      EXPECT_EQ(entry.top(0).text(), entry.text());
      EXPECT_EQ(entry.top(0).bytes(), entry.bytes());
      EXPECT_EQ(entry.has_bytes(), absl::StrContains(entry.text(), "\uFFFD"));
      num_parts += entry.has_bytes() ? 1 : 0;
      if (!text_->Reads(token, options.text.skip_special_tokens)) continue;
      joined += entry.has_bytes() ? entry.bytes() : entry.text();
    }
    ASSERT_TRUE(assembler.Finish(FinishReason::kLength, -1, &message).ok());
    EXPECT_EQ(joined, message.text());
  }
  EXPECT_EQ(num_parts > 0, GetParam().name != "t5");
}

INSTANTIATE_TEST_SUITE_P(All, ModelTextTest, ::testing::ValuesIn(FamilyTokenizers()), NameOfFamily);

}  // namespace
}  // namespace berth
