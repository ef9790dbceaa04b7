// The record of one request of a load test. A value.
//
// Definitions. Times are the client's monotonic clock, since the run's start.
//   - intended: the time at which the request should start. In an open loop it is the arrival; in a closed loop, the
//     time at which it was sent.
//   - TTFT: first content token - intended.
//   - ITL: the gaps between tokens. The tokens of one message arrive together, so a message with k tokens gives one gap
//     since the last message, and k - 1 gaps of zero. A request of n tokens gives n - 1 gaps, which add up to last -
//     first token.
//   - TPOT: (last token - first token) / (n - 1); undefined for a request of one token.
//   - E2E: end of the stream (its status) - intended.
//   - send lag: sent - intended, the delay of the load test itself.
#ifndef BERTH_CLIENT_LOAD_RECORD_H_
#define BERTH_CLIENT_LOAD_RECORD_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace berth::cli {

struct RequestRecord {
  int64_t index = 0;
  absl::Duration intended;
  absl::Duration sent;
  absl::Duration first_token = absl::InfiniteDuration();  // none came
  absl::Duration last_token = absl::InfiniteDuration();
  absl::Duration end;
  std::vector<float> gap_seconds;  // ITL
  int64_t prompt_tokens = 0;       // from the usage
  int64_t cached_tokens = 0;       // of them, found in the cache
  int64_t output_tokens = 0;       // received
  bool shortened = false;          // its lengths, to the server's limit
  grpc::StatusCode code = grpc::StatusCode::OK;
  std::string error;
  bool cancelled = false;  // by Ctrl-C: neither done nor failed

  // With --verify, and while a conversation continues.
  std::vector<int32_t> token_ids;
  std::vector<std::string> faults;  // what was wrong with the stream, one line each

  bool ok() const { return code == grpc::StatusCode::OK; }
  absl::Duration ttft() const { return first_token - intended; }
  absl::Duration e2e() const { return end - intended; }
  absl::Duration send_lag() const { return sent - intended; }
  // REQUIRES: output_tokens > 1.
  absl::Duration tpot() const { return (last_token - first_token) / (output_tokens - 1); }
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_RECORD_H_
