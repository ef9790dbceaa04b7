#include "server/request/decode_text.h"

#include "absl/strings/str_cat.h"
#include "server/request/field_checks.h"

namespace berth {
namespace {

constexpr int64_t kTokensPerCheck = 4096;  // of `stop`

absl::Status TooLong() {
  return absl::OutOfRangeError(absl::StrCat("token_ids: their text is over the limit of ", kMaxDecodedBytes, " bytes"));
}

// Adds up the tokens' own texts, before the whole text takes memory.
absl::Status CheckBytes(absl::Span<const int32_t> tokens, bool skip_special_tokens, const TextCodec& codec,
                        const StopCheck& stop) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  const int64_t longest = codec.longest_token_bytes();
  if (longest > 0 && count <= kMaxDecodedBytes / longest) return absl::OkStatus();
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i % kTokensPerCheck == 0 && stop && stop()) return absl::CancelledError("stopped");
    if (!codec.Reads(tokens[i], skip_special_tokens)) continue;
    // A byte that is not part of a character becomes a mark of three bytes at most.
    bytes += static_cast<int64_t>(codec.TextOf(tokens[i], /*first=*/false).all_bytes().size());
    if (bytes > kMaxDecodedBytes) return TooLong();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> DecodeText(absl::Span<const int32_t> tokens, bool skip_special_tokens,
                                       const TextCodec& codec, const StopCheck& stop) {
  if (absl::Status s = CheckBytes(tokens, skip_special_tokens, codec, stop); !s.ok()) return s;
  absl::StatusOr<std::string> text = codec.Decode(tokens, skip_special_tokens);
  if (!text.ok()) return Invalid("token_ids: ", text.status().message());
  if (static_cast<int64_t>(text->size()) > kMaxDecodedBytes) return TooLong();
  return text;
}

}  // namespace berth
