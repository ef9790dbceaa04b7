// `berth-cli load`: the load test.
#ifndef BERTH_CLIENT_LOAD_LOAD_H_
#define BERTH_CLIENT_LOAD_LOAD_H_

#include <string>

#include "absl/types/span.h"
#include "client/environment.h"

namespace berth::cli {

int RunLoad(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_LOAD_H_
