// `berth-cli chat`: one turn, or a conversation, through the model's chat template.
#ifndef BERTH_CLIENT_CHAT_H_
#define BERTH_CLIENT_CHAT_H_

#include <string>

#include "absl/types/span.h"
#include "client/environment.h"

namespace berth::cli {

int RunChat(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_CHAT_H_
