// Retries of requests that a server refused for lack of room, when it says that a retry may soon succeed.
// Thread-compatible.
#ifndef BERTH_CLIENT_RETRY_H_
#define BERTH_CLIENT_RETRY_H_

#include <grpcpp/support/status.h>

#include <optional>

#include "absl/time/time.h"
#include "client/environment.h"
#include "flags/flag_set.h"

namespace berth::cli {

// The delay of google.rpc.RetryInfo in the status; none: the server does not advise a retry.
std::optional<absl::Duration> RetryDelay(const grpc::Status& status);

class Retries {
 public:
  // Waits for no delay that is longer.
  static constexpr absl::Duration kLongestDelay = absl::Seconds(30);

  void AddTo(FlagSet* flags);
  // Waits for as long as the server asks, if the request may be sent again. False: it may not, because no retry is
  // left, the status is another one, or Ctrl-C ended the wait.
  bool WaitToRetry(const grpc::Status& status, Environment* environment);
  // Whether Ctrl-C ended a wait.
  bool interrupted() const { return interrupted_; }

 private:
  int left_ = 0;
  bool interrupted_ = false;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_RETRY_H_
