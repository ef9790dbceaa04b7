// Token ids to text as they come, for one stream: never part of a character, never a replacement mark for one that is
// still incomplete, and together exactly what decoding all the ids at once gives (but for byte-fallback vocabularies
// fed with bytes that are no UTF-8, whose decoders take back text that was already shown). Not thread-safe.
//
// A token's text can depend on the one before (a leading space, a byte of a character), so each step decodes a short
// window: the tokens since the last boundary, and those before it as context. The work per token does not grow with
// the stream, except while one character stays incomplete, and that is bounded too.
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
  // `tokenizer` must outlive it. `context`: the prompt's last tokens, whose text is not repeated; with none the stream
  // starts a text of its own.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens, absl::Span<const int32_t> context = {});

  // The text that is certain now. INVALID_ARGUMENT: a negative id.
  absl::StatusOr<std::string> Add(absl::Span<const int32_t> ids);
  // What was held back, incomplete bytes as U+FFFD. Call once, at the end.
  absl::StatusOr<std::string> Flush();

 private:
  absl::StatusOr<std::string> Decode(size_t first, size_t last) const;
  // Text of ids_[read_..) after that of ids_[prefix_..read_); held back while it ends within a character.
  absl::StatusOr<std::string> Step(bool last);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> ids_;  // the window
  size_t prefix_ = 0;         // where the context begins
  size_t read_ = 0;           // tokens before this have given their text
};

}  // namespace berth

#endif  // BERTH_TEXT_DETOKENIZER_H_
