// A model's tokenizer, loaded from tokenizer.json by the crate that defines the format. Immutable; thread-safe.
#ifndef BERTH_TEXT_TOKENIZER_H_
#define BERTH_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "text/encode_bounds.h"
#include "text/text_abi.h"
#include "text/token_text.h"

namespace berth {

class Tokenizer {
 public:
  // The longest text that Encode accepts: far above any context, and too short to exhaust memory.
  static constexpr int64_t kMaxTextBytes = int64_t{64} << 20;

  // With the tokens that the folder's other files add (tokenizer_config.h). NOT_FOUND: the folder has no
  // tokenizer.json; INVALID_ARGUMENT: a file cannot be parsed.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);
  // From the file's content. `settings_json`: TokenizerConfig::settings_json(), or "".
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(absl::string_view json, absl::string_view settings_json = "");
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // INVALID_ARGUMENT: not UTF-8, or over kMaxTextBytes. OUT_OF_RANGE: more than max_tokens; what follows them was not
  // tokenised. CANCELLED: `bounds.stop` said so.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special_tokens,
                                              const EncodeBounds& bounds = {}) const;
  // Ids without an entry in the vocabulary decode to nothing. INVALID_ARGUMENT: a negative id.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const;

  // Whether Decode reads the id at all: it has an entry in the vocabulary, and is not left out as a special token.
  bool Reads(int32_t id, bool skip_special_tokens) const;

  // The token's id, or -1.
  int32_t TokenId(absl::string_view token) const;
  // What the token adds to a text. `first`: as its first token, which may lose a space. Nothing for an unknown id.
  TokenText TextOf(int32_t id, bool first = false) const;
  // The largest id plus one.
  int64_t vocab_size() const { return vocab_size_; }
  // No token stands for more bytes of text than this. Spaces that a special token swallows do not count. 0: unknown, as
  // the tokenizer drops text, or has a token for whatever it does not know.
  int64_t longest_token_bytes() const { return longest_token_bytes_; }
  // What Load found in the folder's files that Berth does not do, a line each.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // For the crate's other parts.
  const BerthTokenizer* get() const { return tokenizer_; }

 private:
  explicit Tokenizer(BerthTokenizer* tokenizer);

  BerthTokenizer* tokenizer_;
  int64_t vocab_size_;
  int64_t longest_token_bytes_;
  std::vector<std::string> warnings_;
};

}  // namespace berth

#endif  // BERTH_TEXT_TOKENIZER_H_
