#include "server/request/decode_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/request/tokens_only.h"

namespace berth {
namespace {

// Token n stands for n times 64 KiB of text. Negative ones stand for bytes that are not part of a character: each byte
// becomes a mark of three bytes in the text.
class LongTokens final : public TextCodec {
 public:
  static constexpr int64_t kUnit = 64 << 10;
  mutable int decoded = 0;
  int32_t special = 0;  // left out of texts; 0: none
  int64_t longest = 0;

  int64_t longest_token_bytes() const override { return longest; }
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens, bool skip_special_tokens) const override {
    ++decoded;
    std::string text;
    for (const int32_t token : tokens) {
      if (Reads(token, skip_special_tokens)) text += TextOf(token, false).text;
    }
    return text;
  }
  bool Reads(int32_t token, bool skip_special_tokens) const override {
    return special == 0 || token != special || !skip_special_tokens;
  }
  TokenText TextOf(int32_t token, bool) const override {
    if (token >= 0) return {.text = std::string(token * kUnit, 'a'), .bytes = ""};
    TokenText out = {.text = "", .bytes = std::string(-token * kUnit, '\x80')};
    for (size_t i = 0; i < out.bytes.size(); ++i) out.text += "\xEF\xBF\xBD";
    return out;
  }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens,
                                              const EncodeBounds& bounds) const override {
    return none_.Encode(text, add_special_tokens, bounds);
  }
  bool has_chat_template() const override { return false; }
  absl::StatusOr<std::string> RenderChat(const std::string& messages, const std::string& tools, bool add_prompt,
                                         const std::string& extra, const StopCheck& stop) const override {
    return none_.RenderChat(messages, tools, add_prompt, extra, stop);
  }
  std::unique_ptr<TextStream> NewStream(TextStreamOptions options) const override {
    return none_.NewStream(std::move(options));
  }

 private:
  TokensOnly none_;
};

constexpr char kTooLong[] = "token_ids: their text is over the limit of 16711680 bytes";

TEST(DecodeTextTest, ATextMayBeAsLongAsAnAnswer) {
  const LongTokens codec;
  const absl::StatusOr<std::string> text = DecodeText({200, 55}, true, codec, {});
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(static_cast<int64_t>(text->size()), kMaxDecodedBytes);
}

TEST(DecodeTextTest, ALongerTextIsRefusedBeforeItIsMade) {
  const LongTokens codec;
  const absl::Status status = DecodeText({200, 56}, true, codec, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(), kTooLong);
  EXPECT_EQ(codec.decoded, 0);
}

TEST(DecodeTextTest, WhatIsLeftOutDoesNotCount) {
  LongTokens codec;
  codec.special = 300;
  EXPECT_TRUE(DecodeText({300, 1}, true, codec, {}).ok());
  EXPECT_EQ(DecodeText({300, 1}, false, codec, {}).status().message(), kTooLong);
}

TEST(DecodeTextTest, MarksCount) {
  const LongTokens codec;
  EXPECT_TRUE(DecodeText({-85}, true, codec, {}).ok());
  EXPECT_EQ(DecodeText({-86}, true, codec, {}).status().message(), kTooLong);
}

TEST(DecodeTextTest, ItEndsWhenItIsStopped) {
  const LongTokens codec;
  int asked = 0;
  const std::vector<int32_t> tokens(10000, 0);
  EXPECT_EQ(DecodeText(tokens, true, codec, [&asked] { return ++asked == 2; }).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(codec.decoded, 0);
}

TEST(DecodeTextTest, WhereNoTokenIsLongNothingIsAddedUp) {
  LongTokens codec;
  codec.longest = LongTokens::kUnit;
  EXPECT_TRUE(DecodeText({1, 1}, true, codec, [] { return true; }).ok());
}

}  // namespace
}  // namespace berth
