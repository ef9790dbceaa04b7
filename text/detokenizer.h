// Turns the token ids of one stream into text as they come. It never returns part of a character, nor a replacement
// mark for an incomplete one. All pieces together equal the text of all ids decoded at once. One exception: with bytes
// that are not valid UTF-8, decoders of byte-fallback vocabularies retract text that was already returned. Not
// thread-safe.
//
// A token's text can depend on the token before it (a leading space, a byte of a character). So each step decodes a
// short window: the tokens since the last boundary, and those before it as context. The work per token does not grow
// with the stream. Only an incomplete character extends the window, up to a bound, and spaces at the beginning of a
// text.
#ifndef BERTH_TEXT_DETOKENIZER_H_
#define BERTH_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "text/tokenizer.h"

namespace berth {

class Detokenizer {
 public:
  // `tokenizer` must outlive the detokenizer. `context`: the prompt's last tokens, whose text is not repeated; empty:
  // the stream starts a text of its own.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens, absl::Span<const int32_t> context = {});

  // Adds ids and returns the text that is now certain. INVALID_ARGUMENT: a negative id.
  absl::StatusOr<std::string> Add(absl::Span<const int32_t> ids);
  // Returns the text that was held back, with incomplete bytes as U+FFFD. Call it once, at the end.
  absl::StatusOr<std::string> Flush();

  // How many tokens are kept: what the next one costs.
  int64_t num_kept() const { return static_cast<int64_t>(ids_.size()); }

 private:
  absl::StatusOr<std::string> Decode(size_t first, size_t last) const;
  // Returns the text of ids_[read_..) after that of ids_[prefix_..read_); empty while it ends within a character.
  absl::StatusOr<std::string> Step(bool last);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> ids_;  // the window
  size_t prefix_ = 0;         // where the context begins
  size_t read_ = 0;           // tokens before this have given their text
};

}  // namespace berth

#endif  // BERTH_TEXT_DETOKENIZER_H_
