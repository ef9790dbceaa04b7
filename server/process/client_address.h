// Which client a call comes from, where calls without a credential are told apart. Pure function; thread-safe.
#ifndef BERTH_SERVER_PROCESS_CLIENT_ADDRESS_H_
#define BERTH_SERVER_PROCESS_CLIENT_ADDRESS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace berth {

// `peer`, as ServerContextBase::peer() gives it, without its port. IPv6 addresses of one network of 64 bits give one
// text, because a client usually has such a network for itself; those of IPv4 in IPv6 give that of IPv4.
std::string ClientAddress(absl::string_view peer);

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_CLIENT_ADDRESS_H_
