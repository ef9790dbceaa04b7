// What a request's events add up to. Thread-compatible.
#ifndef BERTH_TESTS_TESTING_REQUEST_RECORD_H_
#define BERTH_TESTS_TESTING_REQUEST_RECORD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/request.h"

namespace berth {

// All that happened to one request.
struct RequestRecord {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = -1;
  absl::Status error;
  RequestTimes times;
  int num_ends = 0;
  bool token_after_end = false;

  void Apply(const TokenEvent& event) {
    if (event.token != RowResult::kNoToken) {
      token_after_end = token_after_end || num_ends > 0;
      tokens.push_back(event.token);
    }
    if (event.finish == FinishReason::kNone) return;
    ++num_ends;
    finish = event.finish;
    stop_token = event.stop_token;
    error = event.error;
    times = event.times;
  }
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_REQUEST_RECORD_H_
