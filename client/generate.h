// `berth-cli generate`: streams the continuation of one prompt.
#ifndef BERTH_CLIENT_GENERATE_H_
#define BERTH_CLIENT_GENERATE_H_

#include <string>

#include "absl/types/span.h"
#include "client/environment.h"

namespace berth::cli {

int RunGenerate(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_GENERATE_H_
