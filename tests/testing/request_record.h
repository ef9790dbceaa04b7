// What a request's events add up to. Thread-compatible.
#ifndef BERTH_TESTS_TESTING_REQUEST_RECORD_H_
#define BERTH_TESTS_TESTING_REQUEST_RECORD_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/request.h"

namespace berth {

// All that happened to one request: to its first output, and in `others` to each other one.
struct RequestRecord {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = -1;
  absl::Status error;
  RequestTimes times;
  int64_t num_cached = 0;
  PromptLogprobs prompt_logprobs;
  std::vector<float> embedding;
  int num_ends = 0;  // of the whole request
  bool token_after_end = false;
  std::map<int32_t, RequestRecord> others;

  void Apply(const TokenEvent& event) {
    token_after_end = token_after_end || (event.token != RowResult::kNoToken && num_ends > 0);
    if (event.finish != FinishReason::kNone && event.outputs_left == 0) ++num_ends;
    (event.output == 0 ? *this : others[event.output]).ApplyToOutput(event);
  }

 private:
  void ApplyToOutput(const TokenEvent& event) {
    if (!event.prompt_logprobs.entries.empty()) {
      token_after_end = token_after_end || !prompt_logprobs.entries.empty() || !tokens.empty();
      prompt_logprobs = event.prompt_logprobs;
    }
    if (event.token != RowResult::kNoToken) {
      token_after_end = token_after_end || finish != FinishReason::kNone;
      tokens.push_back(event.token);
    }
    if (event.finish == FinishReason::kNone) return;
    finish = event.finish;
    embedding = event.embedding;
    stop_token = event.stop_token;
    error = event.error;
    times = event.times;
    num_cached = event.num_cached;
  }
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_REQUEST_RECORD_H_
