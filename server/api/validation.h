// A client's GenerateRequest -> the engine's Request, every field checked. Thread-safe; blocks while it tokenises.
//
// Why here alone: nothing behind this point meets an untrusted number. Sizes are int64 from the first comparison on.
//
// To add a field: 1. inference.proto, with its range and default; 2. a check below that names field, value and limit;
// 3. rows below, at and above the limit in tests/server/api/validation_test.cc.
#ifndef BERTH_SERVER_API_VALIDATION_H_
#define BERTH_SERVER_API_VALIDATION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "berth/v1/inference.pb.h"
#include "models/generation_config.h"
#include "models/model_runner.h"
#include "scheduler/request.h"
#include "server/api/text_codec.h"

namespace berth {

struct RequestLimits {
  int64_t max_sequence_tokens = 0;     // prompt + output: Engine::max_sequence_tokens()
  int64_t max_encoder_tokens = 0;      // Engine::max_encoder_tokens(); 0: the model has no encoder
  int64_t default_draft_tokens = 0;    // when draft_tokens is absent
  int64_t default_max_tokens = 0;      // when max_tokens is absent; 0: all that the limit leaves
  int64_t max_logprobs = 20;           // 0: only the chosen token's own
  int64_t max_outputs = 16;            // n, best_of and num_beams; no more than may run at once
  int64_t max_text_bytes = 4ll << 20;  // of a prompt or of a chat's content
};

// What a request is measured against. The pointers must outlive it.
struct ValidationContext {
  const ModelInfo* model = nullptr;
  const TextCodec* text = nullptr;
  RequestLimits limits;
  GenerationDefaults defaults;  // the model's, for absent fields of `sampling`
};

// How a request's tokens become messages.
struct OutputOptions {
  TextStreamOptions text;
  bool logprobs = false;
  bool return_prompt_token_ids = false;
  int64_t skip_tokens = 0;     // the first output tokens, which the client has already, are not sent again
  int64_t num_generated = 1;   // outputs that the engine gives
  int64_t num_returned = 1;    // the best of them, by mean logprob, if they are fewer
  bool sums_logprobs = false;  // say each output's cumulative_logprob
  bool tells_at_end = false;   // the engine tells all of them when the last has ended
};

struct ValidatedRequest {
  std::string request_id;  // "": the client named none
  std::string session_id;  // "": none; the characters are the SessionStore's to check
  Request request;         // all but key, arrival and deadline
  OutputOptions output;
};

// INVALID_ARGUMENT naming field, value and limit; OUT_OF_RANGE (INVALID_ARGUMENT on the wire) when prompt and output
// are longer than a sequence may be. `random_seed` is the seed of a request that names none.
absl::StatusOr<ValidatedRequest> ValidateGenerate(const v1::GenerateRequest& request, const ValidationContext& context,
                                                  uint64_t random_seed);

// Whether the request's outputs can be streamed; INVALID_ARGUMENT if not.
absl::Status CheckStreamed(const OutputOptions& output);

// Same codes; the tokens of a text or chat, and the text they were made from.
absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request, const ValidationContext& context);
absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                  const ValidationContext& context);

// 1 to 128 characters, none of them a control character.
absl::Status CheckRequestId(absl::string_view field, std::string_view id);

}  // namespace berth

#endif  // BERTH_SERVER_API_VALIDATION_H_
