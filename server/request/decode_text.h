// The text of a client's tokens, bounded: a few million bytes of ids may stand for any number of bytes of text.
#ifndef BERTH_SERVER_REQUEST_DECODE_TEXT_H_
#define BERTH_SERVER_REQUEST_DECODE_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/delivery/text_codec.h"
#include "text/encode_bounds.h"

namespace berth {

// A message with a text of this size is within what gRPC sends (server.cc).
inline constexpr int64_t kMaxDecodedBytes = (int64_t{16} << 20) - (int64_t{64} << 10);

// OUT_OF_RANGE: the text is over kMaxDecodedBytes; at most three times as much is held at once. CANCELLED: `stop` said
// so. INVALID_ARGUMENT: the codec's own error.
absl::StatusOr<std::string> DecodeText(absl::Span<const int32_t> tokens, bool skip_special_tokens,
                                       const TextCodec& codec, const StopCheck& stop);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_DECODE_TEXT_H_
