// The command `berth-cli token`: makes a bearer token and the hash of it that --tenants holds.
#ifndef BERTH_CLIENT_TOKEN_H_
#define BERTH_CLIENT_TOKEN_H_

#include <string>

#include "absl/types/span.h"
#include "client/environment.h"

namespace berth::cli {

int RunToken(absl::Span<const std::string> args, Environment& environment);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_TOKEN_H_
