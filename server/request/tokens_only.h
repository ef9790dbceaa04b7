// The codec of a model without a tokenizer: takes and gives token ids, and no text. Why: the services then need not ask
// whether there is one. Stateless; thread-safe.
#ifndef BERTH_SERVER_REQUEST_TOKENS_ONLY_H_
#define BERTH_SERVER_REQUEST_TOKENS_ONLY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/delivery/text_codec.h"

namespace berth {

class TokensOnly final : public TextCodec {
 public:
  bool has_tokenizer() const override { return false; }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view, bool, const EncodeBounds&) const override {
    return NoTokenizer();
  }
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t>, bool) const override { return NoTokenizer(); }
  bool Reads(int32_t, bool) const override { return false; }
  TokenText TextOf(int32_t, bool) const override { return {}; }
  bool has_chat_template() const override { return false; }
  absl::StatusOr<std::string> RenderChat(const std::string&, const std::string&, bool, const std::string&,
                                         const StopCheck&) const override {
    return NoTokenizer();
  }
  std::unique_ptr<TextStream> NewStream(TextStreamOptions) const override { return std::make_unique<Stream>(); }

 private:
  class Stream final : public TextStream {
   public:
    absl::StatusOr<TextPiece> Add(int32_t) override { return TextPiece(); }
    absl::StatusOr<TextPiece> Flush() override { return TextPiece(); }
  };

  static absl::Status NoTokenizer() { return absl::InvalidArgumentError("the model has no tokenizer; use token ids"); }
};

// Returns the codec of models without a tokenizer.
inline const TextCodec* NoText() {
  static const TokensOnly tokens_only;
  return &tokens_only;
}

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_TOKENS_ONLY_H_
