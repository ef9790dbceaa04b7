// Checks that one stream loses nothing, repeats nothing and holds only what was asked for. Thread-compatible.
//
// It checks:
//   - Every message's usage counts exactly the tokens received so far, and the prompt's.
//   - Only the first message has the request id.
//   - Only the last message has a finish reason, which is LENGTH.
//   - The stream holds exactly the number of tokens asked for.
//   - If a reference is given, the tokens equal those of the same request sent alone.
#ifndef BERTH_CLIENT_LOAD_STREAM_CHECK_H_
#define BERTH_CLIENT_LOAD_STREAM_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "berth/v1/inference.pb.h"

namespace berth::cli {

class StreamCheck {
 public:
  struct Expected {
    int64_t output_tokens = 0;
    int64_t prompt_tokens = -1;                       // -1: not known, but the same in every message
    const std::vector<int32_t>* reference = nullptr;  // not owned; null: none
  };

  explicit StreamCheck(Expected expected) : expected_(expected) {}

  void OnMessage(const v1::GenerateResponse& message);
  // REQUIRES: the stream ended with status OK.
  void OnEnd();

  // One line each; a stream's first few, and the last one if there were more.
  const std::vector<std::string>& faults() const { return faults_; }
  const std::vector<int32_t>& token_ids() const { return token_ids_; }

 private:
  void Fault(std::string text);
  void CheckUsage(const v1::GenerateResponse& message);
  void CheckReference();

  Expected expected_;
  std::vector<int32_t> token_ids_;
  std::vector<std::string> faults_;
  int64_t num_messages_ = 0;
  int64_t counted_ = 0;  // tokens, as the last usage counts them
  v1::FinishReason finish_reason_ = v1::FINISH_REASON_UNSPECIFIED;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_STREAM_CHECK_H_
