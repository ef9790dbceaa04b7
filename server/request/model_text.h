// The services' text side of a real model: its tokeniser, its chat template, and streams that find stop strings.
// Thread-safe; its streams are not.
#ifndef BERTH_SERVER_REQUEST_MODEL_TEXT_H_
#define BERTH_SERVER_REQUEST_MODEL_TEXT_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/delivery/text_codec.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace berth {

class ModelText : public TextCodec {
 public:
  // From the model's folder. Null without an error when it has no tokenizer.json: such a model serves token ids only.
  // Chats are rendered in the sandbox, if there is one; it must outlive the text. INVALID_ARGUMENT: a file cannot be
  // understood.
  static absl::StatusOr<std::unique_ptr<ModelText>> Load(const std::string& model_dir,
                                                         const Sandbox* sandbox = nullptr);

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens,
                                              const EncodeBounds& bounds) const override;
  int64_t longest_token_bytes() const override { return tokenizer_->longest_token_bytes(); }
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens, bool skip_special_tokens) const override;
  bool Reads(int32_t token, bool skip_special_tokens) const override {
    return tokenizer_->Reads(token, skip_special_tokens);
  }
  TokenText TextOf(int32_t token, bool first) const override { return tokenizer_->TextOf(token, first); }
  absl::Span<const int32_t> message_end_tokens() const override { return message_end_tokens_; }
  bool has_chat_template() const override { return chat_template_ != nullptr; }
  absl::StatusOr<std::string> RenderChat(const std::string& messages_json, const std::string& tools_json,
                                         bool add_generation_prompt, const std::string& extra_json,
                                         const StopCheck& stop) const override;
  std::unique_ptr<TextStream> NewStream(TextStreamOptions options) const override;
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  // What the folder's files say that is not done, a line each.
  const std::vector<std::string>& warnings() const { return tokenizer_->warnings(); }

 private:
  ModelText(std::unique_ptr<Tokenizer> tokenizer, std::unique_ptr<ChatTemplate> chat_template);

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;  // null: none
  std::vector<int32_t> message_end_tokens_;
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_MODEL_TEXT_H_
