// The command `berth-cli status`: shows a server's health, model, cache groups, load and use of the arena.
#ifndef BERTH_CLIENT_STATUS_H_
#define BERTH_CLIENT_STATUS_H_

#include <string>

#include "absl/types/span.h"
#include "client/environment.h"

namespace berth::cli {

int RunStatus(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_STATUS_H_
