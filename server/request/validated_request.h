// A checked request, and what requests are checked against. Plain data.
#ifndef BERTH_SERVER_REQUEST_VALIDATED_REQUEST_H_
#define BERTH_SERVER_REQUEST_VALIDATED_REQUEST_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "berth/v1/inference.pb.h"
#include "models/generation_config.h"
#include "models/model_runner.h"
#include "scheduler/request.h"
#include "server/delivery/output_options.h"
#include "server/delivery/text_codec.h"
#include "text/grammar_spec.h"

namespace berth {

struct RequestLimits {
  int64_t max_sequence_tokens = 0;     // prompt + output: Engine::max_sequence_tokens()
  int64_t max_encoder_tokens = 0;      // Engine::max_encoder_tokens(); 0: the model has no encoder
  int64_t default_draft_tokens = 0;    // when draft_tokens is absent
  int64_t default_max_tokens = 0;      // when max_tokens is absent; 0: all that the limit leaves
  int64_t max_logprobs = 20;           // 0: only the chosen token's own
  int64_t max_outputs = 16;            // n, best_of and num_beams; at most as many as may run at once
  int64_t max_text_bytes = 4ll << 20;  // of a prompt or of a chat's content
  int64_t max_structure_bytes =
      GrammarLimits().max_text_bytes;  // of a schema, regex, grammar or structural tag, or of all choices together
};

// The pointers must outlive it.
struct ValidationContext {
  const ModelInfo* model = nullptr;
  const TextCodec* text = nullptr;
  RequestLimits limits;
  GenerationDefaults defaults;  // the model's, for absent fields of `sampling`
  // Whether Request::message_ends is of use.
  bool finds_message_ends = false;
  // Whether the request is that of a session's file, which has the model's stop strings among its own.
  bool is_resumed = false;
  // Get the time that each text took; may be null. Thread-safe.
  std::function<void(absl::Duration)> on_tokenised = nullptr;
  std::function<void(absl::Duration)> on_rendered = nullptr;
};

struct ValidatedRequest {
  std::string request_id;  // "": the client gave none
  std::string session_id;  // "": no session
  Request request;         // all but key, arrival and deadline
  OutputOptions output;
  std::optional<GrammarSpec> structure;  // compiled before the request is submitted: it becomes request.constraint
  // Set with session_id: the client's message as the session file keeps it. Its input is token ids, and each absent
  // field that has a default is set, so that a server with other defaults reads the same request from it.
  std::optional<v1::GenerateRequest> session_request;
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_VALIDATED_REQUEST_H_
