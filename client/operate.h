// The commands of operators: `berth-cli drain`, `flush` and `erase`.
#ifndef BERTH_CLIENT_OPERATE_H_
#define BERTH_CLIENT_OPERATE_H_

#include <string>

#include "absl/types/span.h"
#include "client/environment.h"

namespace berth::cli {

int RunDrain(absl::Span<const std::string> args, Environment& environment);
int RunFlush(absl::Span<const std::string> args, Environment& environment);
int RunErase(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_OPERATE_H_
