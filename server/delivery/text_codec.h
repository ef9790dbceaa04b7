// The services' view of a model's text side: tokenizer, chat template, and the incremental way back from tokens to text
// with stop strings. Why an interface: the services and their tests then build without the Rust crate behind it.
// TextCodec is thread-safe; a TextStream belongs to one request and one thread.
#ifndef BERTH_SERVER_DELIVERY_TEXT_CODEC_H_
#define BERTH_SERVER_DELIVERY_TEXT_CODEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "text/encode_bounds.h"
#include "text/token_text.h"

namespace berth {

struct TextStreamOptions {
  bool skip_special_tokens = true;
  std::vector<std::string> stop;  // the text ends before the first of these, a special token that is left out included
  bool include_stop = false;      // keep that stop string in the text
  int64_t min_tokens = 0;         // stop strings that end in the text of these first tokens do not count

  // The prompt's last tokens, where the text continues theirs and keeps the space before its first word; empty: the
  // text stands alone.
  std::vector<int32_t> context;

  friend bool operator==(const TextStreamOptions&, const TextStreamOptions&) = default;
};

struct TextPiece {
  std::string text;         // whole characters that can no longer become part of a stop string
  bool stopped = false;     // a stop string was found: nothing may be added any more
  std::string stop_string;  // which one
};

class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual absl::StatusOr<TextPiece> Add(int32_t token) = 0;
  // Returns the text that was held back. Call it once, at the end, unless a stop string was found.
  virtual absl::StatusOr<TextPiece> Flush() = 0;
};

class TextCodec {
 public:
  virtual ~TextCodec() = default;

  // False: text is refused, and streams give none.
  virtual bool has_tokenizer() const { return true; }

  // OUT_OF_RANGE: more than bounds.max_tokens; CANCELLED: bounds.stop said so.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens,
                                                      const EncodeBounds& bounds) const = 0;
  // No token stands for more bytes of text than this. 0: unknown.
  virtual int64_t longest_token_bytes() const { return 0; }
  virtual absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens, bool skip_special_tokens) const = 0;
  // Whether Decode reads the token at all: it is one, and is not left out as a special token.
  virtual bool Reads(int32_t token, bool skip_special_tokens) const = 0;
  // What the token adds to a text. `first`: as its first token, which may lose a space.
  virtual TokenText TextOf(int32_t token, bool first) const = 0;

  // The special tokens after which a message of a chat ends, ascending, as far as the tokenizer's files tell.
  virtual absl::Span<const int32_t> message_end_tokens() const { return {}; }

  virtual bool has_chat_template() const = 0;
  // `messages_json`: an array of objects. `tools_json`: an array, or "" for none. `extra_json`: an object, or "".
  // INVALID_ARGUMENT when the template refuses the messages; RESOURCE_EXHAUSTED when it needs too much memory, stack or
  // time; CANCELLED when `stop` said so.
  virtual absl::StatusOr<std::string> RenderChat(const std::string& messages_json, const std::string& tools_json,
                                                 bool add_generation_prompt, const std::string& extra_json,
                                                 const StopCheck& stop) const = 0;

  // The codec must outlive the stream.
  virtual std::unique_ptr<TextStream> NewStream(TextStreamOptions options) const = 0;
};

}  // namespace berth

#endif  // BERTH_SERVER_DELIVERY_TEXT_CODEC_H_
