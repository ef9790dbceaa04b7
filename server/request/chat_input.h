// Turns a client's chat into a prompt with the model's chat template. Thread-safe.
#ifndef BERTH_SERVER_REQUEST_CHAT_INPUT_H_
#define BERTH_SERVER_REQUEST_CHAT_INPUT_H_

#include <string>

#include "absl/status/statusor.h"
#include "berth/v1/inference.pb.h"
#include "server/delivery/text_codec.h"

namespace berth {

// Checks and renders. INVALID_ARGUMENT naming the field, also when the model has no template or it refuses the
// messages.
absl::StatusOr<std::string> RenderChat(const v1::Chat& chat, const TextCodec& text, int64_t max_text_bytes,
                                       const StopCheck& stop);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_CHAT_INPUT_H_
