// Who makes a call, and how long it waits: all that a request's way needs to know of the protocol that it came by.
#ifndef BERTH_SERVER_REQUEST_CALL_INFO_H_
#define BERTH_SERVER_REQUEST_CALL_INFO_H_

#include <string>

#include "absl/time/time.h"
#include "server/admission/identity.h"

namespace berth {

struct CallInfo {
  absl::Time deadline = absl::InfiniteFuture();  // on the steady clock
  std::string peer;                              // the client's address, with its port
  std::string trace_parent;                      // of W3C's Trace Context, if it is well formed; ""
  Identity identity;
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_CALL_INFO_H_
