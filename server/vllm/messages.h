// Turns requests of vllm.grpc.engine.VllmEngine into berth.v1's, and berth.v1's answers and errors back. So berth.v1
// alone checks and computes. Functions are thread-safe; Answers belongs to one call.
#ifndef BERTH_SERVER_VLLM_MESSAGES_H_
#define BERTH_SERVER_VLLM_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/inference.pb.h"
#include "models/generation_config.h"
#include "server/request/validated_request.h"
#include "vllm/engine.pb.h"

namespace berth {

// INVALID_ARGUMENT naming the field: what berth.v1 has no field for. The rest is checked there.
absl::StatusOr<v1::GenerateRequest> ToBerth(const ::vllm::grpc::engine::GenerateRequest& in,
                                            const ValidationContext& context);

// An error of berth.v1 that names the fields of this contract instead of berth.v1's. Other errors stay as they are.
absl::Status WithContractNames(const absl::Status& status);

// The sampling values that generation_config.json sets, as vLLM writes them: {"temperature":0.7,"top_p":0.95}.
std::string SamplingDefaultsJson(const GenerationDefaults& defaults);

// Translates the answers of one request.
class Answers {
 public:
  explicit Answers(const ::vllm::grpc::engine::GenerateRequest& request);

  // The messages, one at least, that `message` becomes. With `stream`: a chunk, and the output's `complete` if it has
  // ended. Else: a `complete` for each output.
  std::vector<::vllm::grpc::engine::GenerateResponse> Translate(const v1::GenerateResponse& message);

 private:
  ::vllm::grpc::engine::GenerateResponse Complete(const v1::GenerateResponse& output, const v1::Usage& usage) const;
  // Whether the message has the prompt's logprobs. An output that ends before its first token has none.
  bool HasPromptLogprobs(const v1::GenerateResponse& output, const v1::Usage& usage) const;
  // Adds the first token, which has no logprob. REQUIRES: HasPromptLogprobs.
  void FillPromptLogprobs(const v1::GenerateResponse& output, ::vllm::grpc::engine::InputLogProbs* out) const;

  const bool stream_;
  const bool top_logprobs_;
  const bool prompt_logprobs_;
  const bool top_prompt_logprobs_;
  const std::vector<uint32_t> stop_token_ids_;
  std::vector<uint32_t> num_tokens_;  // by output
  int32_t first_prompt_token_ = 0;    // if the prompt's logprobs are wanted
};

}  // namespace berth

#endif  // BERTH_SERVER_VLLM_MESSAGES_H_
