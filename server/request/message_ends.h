// Finds where the messages of a prompt end (Request::message_ends). Later requests are likely to begin with the same
// messages. Pure functions; thread-safe.
#ifndef BERTH_SERVER_REQUEST_MESSAGE_ENDS_H_
#define BERTH_SERVER_REQUEST_MESSAGE_ENDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "berth/v1/inference.pb.h"
#include "server/request/validated_request.h"

namespace berth {

// The lengths of the prompt's beginnings that end with a token that ends a message: an end token of the model or one of
// TextCodec::message_end_tokens. Ascending, below the prompt's length.
std::vector<int32_t> EndsAfterTokens(absl::Span<const int32_t> prompt, const ValidationContext& context);

// Returns them for a chat whose template writes no such tokens: renders beginnings of the list of messages, and sees
// how far the chat's text and tokens agree with theirs. Finds the first end and the last three, since the others were
// the last ones of an earlier request. `text` is the rendered chat, `prompt` its tokens. Skips beginnings that the
// template refuses. CANCELLED and UNAVAILABLE as TextCodec::RenderChat.
absl::StatusOr<std::vector<int32_t>> EndsByRendering(const v1::Chat& chat, const std::string& text,
                                                     absl::Span<const int32_t> prompt, const StopCheck& stop,
                                                     const ValidationContext& context);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_MESSAGE_ENDS_H_
