// Turns the token ids of one stream into text as they come. It never returns part of a character, nor a replacement
// mark for an incomplete one. All pieces together equal the text of all ids decoded at once. One exception: with bytes
// that are not valid UTF-8, decoders of byte-fallback vocabularies retract text that was already returned. Not
// thread-safe.
//
// A token's text can depend on the token before it (a leading space, a byte of a character). So each step decodes a
// short window: the tokens since the last boundary, and those before it as context. The work per token does not grow
// with the stream: tokens that decoding does not read are dropped, and of those without text one is kept. Only an
// incomplete character extends the window, and spaces at the beginning of a text.
#ifndef BERTH_TEXT_DETOKENIZER_H_
#define BERTH_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "text/tokenizer.h"

namespace berth {

class Detokenizer {
 public:
  // `tokenizer` must outlive the detokenizer. `context`: the prompt's last tokens, whose text is not repeated; empty:
  // the stream starts a text of its own. A character that the context began, and the stream completes, is the stream's.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens, absl::Span<const int32_t> context = {});

  // Adds ids and returns the text that is now certain. INVALID_ARGUMENT: a negative id.
  absl::StatusOr<std::string> Add(absl::Span<const int32_t> ids);
  // Returns the text that was held back, with incomplete bytes as U+FFFD. Call it once, at the end.
  absl::StatusOr<std::string> Flush();

  // How many tokens are kept: what the next one costs.
  int64_t num_kept() const { return static_cast<int64_t>(ids_.size()); }

 private:
  absl::StatusOr<std::string> Decode(size_t first, size_t last) const;
  // Drops the tokens at the context's beginning that are the end of a character: decoders may mark all bytes after
  // them.
  void DropPartOfCharacter();
  // A character that the last tokens begin and do not end.
  struct OpenCharacter {
    size_t token;        // which has its first byte
    bool begins_token;   // that is the token's first byte too
    std::string before;  // in open_: the window's text before it
  };
  std::optional<OpenCharacter> FindOpenCharacter() const;
  // The window's text before a character that is open at its end. `all`: the whole text, with marks for it.
  absl::StatusOr<std::string> TextBefore(const OpenCharacter& open, const std::string& all) const;
  // What is new in `text`, that of ids_[0..end).
  absl::StatusOr<std::string> NewText(const std::string& text, size_t end) const;
  // Drops the last token if it and the one before have no text. One may part others, or be the first of the text.
  void DropRepeatedEmpty();
  // Returns the new text up to a character that is not complete; `last`: all of it.
  absl::StatusOr<std::string> Step(bool last);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> ids_;           // the window
  size_t read_ = 0;                    // tokens before this have given their text, an open character excepted
  std::optional<OpenCharacter> open_;  // at the end of ids_[0..read_)
  bool in_context_ = true;             // no text has come: ids_[0..read_) is the context
};

}  // namespace berth

#endif  // BERTH_TEXT_DETOKENIZER_H_
