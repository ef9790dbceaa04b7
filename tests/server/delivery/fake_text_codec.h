// A tokenizer of 100 tokens: 0..94 are the printable ASCII characters from ' ' on, 95..99 are special tokens, and 96
// begins a text. Its chat template puts every message in a line "role:content". Thread-safe.
#ifndef BERTH_TESTS_SERVER_DELIVERY_FAKE_TEXT_CODEC_H_
#define BERTH_TESTS_SERVER_DELIVERY_FAKE_TEXT_CODEC_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/delivery/text_codec.h"

namespace berth {

inline constexpr int64_t kFakeVocabSize = 100;
inline constexpr int32_t kFakeBos = 96;

inline std::string FakeTokenText(int32_t token, bool skip_special_tokens) {
  if (token < 95) return std::string(1, static_cast<char>(' ' + token));
  return skip_special_tokens ? "" : absl::StrCat("<", token, ">");
}

// Holds back any tail that may become a stop string.
class FakeTextStream final : public TextStream {
 public:
  explicit FakeTextStream(TextStreamOptions options, std::function<void()> on_token = {})
      : options_(std::move(options)), on_token_(std::move(on_token)) {}

  absl::StatusOr<TextPiece> Add(int32_t token) override {
    if (on_token_) on_token_();
    held_ += FakeTokenText(token, options_.skip_special_tokens);
    TextPiece piece;
    size_t found = std::string::npos;
    for (const std::string& stop : options_.stop) {
      if (const size_t at = held_.find(stop); at < found) {
        found = at;
        piece.stop_string = stop;
      }
    }
    piece.stopped = found != std::string::npos;
    const size_t length =
        piece.stopped ? found + (options_.include_stop ? piece.stop_string.size() : 0) : held_.size() - HeldBack();
    piece.text = held_.substr(0, length);
    held_.erase(0, length);
    return piece;
  }
  absl::StatusOr<TextPiece> Flush() override { return TextPiece{.text = std::exchange(held_, ""), .stop_string = ""}; }

 private:
  size_t HeldBack() const {
    size_t longest = 0;
    for (const std::string& stop : options_.stop) {
      for (size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
        if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) longest = n;
      }
    }
    return longest;
  }

  TextStreamOptions options_;
  std::function<void()> on_token_;
  std::string held_;
};

class FakeTextCodec final : public TextCodec {
 public:
  bool with_template = true;
  int64_t longest_token = 0;  // what longest_token_bytes() says
  std::function<void(std::string_view text, const StopCheck& stop)>
      on_encode;                   // called by Encode; set before the first call
  std::function<void()> on_token;  // called by each stream's Add; set before the first call

  std::vector<int32_t> end_tokens;  // what message_end_tokens() says

  int64_t longest_token_bytes() const override { return longest_token; }
  absl::Span<const int32_t> message_end_tokens() const override { return end_tokens; }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens,
                                              const EncodeBounds& bounds) const override {
    if (on_encode) on_encode(text, bounds.stop);
    if (bounds.stop && bounds.stop()) return absl::CancelledError("stopped");
    const int64_t count = static_cast<int64_t>(text.size()) + (add_special_tokens ? 1 : 0);
    if (bounds.max_tokens > 0 && count > bounds.max_tokens) return absl::OutOfRangeError("too many tokens");
    std::vector<int32_t> tokens;
    if (add_special_tokens && !text.empty()) tokens.push_back(kFakeBos);
    for (const char c : text) tokens.push_back(c >= ' ' && c <= '~' ? c - ' ' : 95);
    return tokens;
  }
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens, bool skip_special_tokens) const override {
    std::string text;
    for (const int32_t token : tokens) text += FakeTokenText(token, skip_special_tokens);
    return text;
  }
  bool Reads(int32_t token, bool skip_special_tokens) const override { return token < 95 || !skip_special_tokens; }
  TokenText TextOf(int32_t token, bool) const override { return {.text = FakeTokenText(token, false), .bytes = ""}; }
  bool has_chat_template() const override { return with_template; }
  absl::StatusOr<std::string> RenderChat(const std::string& messages_json, const std::string& tools_json,
                                         bool add_generation_prompt, const std::string& extra_json,
                                         const StopCheck&) const override {
    std::string text = tools_json + extra_json;
    for (const nlohmann::json& message : nlohmann::json::parse(messages_json)) {
      if (message["role"] == "endless") return absl::ResourceExhaustedError("too much");
      if (message["role"] == "refused") return absl::InvalidArgumentError("role refused");
      const nlohmann::json& content = message["content"];
      absl::StrAppend(&text, message["role"].get<std::string>(), ":",
                      content.is_string() ? content.get<std::string>() : content.dump());
      if (message.contains("tool_calls")) absl::StrAppend(&text, message["tool_calls"].dump());
      absl::StrAppend(&text, "|");
    }
    return text + (add_generation_prompt ? "assistant:" : "");
  }
  std::unique_ptr<TextStream> NewStream(TextStreamOptions options) const override {
    return std::make_unique<FakeTextStream>(std::move(options), on_token);
  }
};

}  // namespace berth

#endif  // BERTH_TESTS_SERVER_DELIVERY_FAKE_TEXT_CODEC_H_
