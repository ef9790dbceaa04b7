// Checks a client's messages and turns them into what the engine takes. Thread-safe; blocks while it tokenises.
//
// All checks are here and in request_fields.h: code behind this point never meets an untrusted number. Sizes are int64
// from the first comparison on. request_fields.h has the recipe for a new field.
#ifndef BERTH_SERVER_REQUEST_VALIDATION_H_
#define BERTH_SERVER_REQUEST_VALIDATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/inference.pb.h"
#include "server/request/validated_request.h"

namespace berth {

// INVALID_ARGUMENT naming field, value and limit; OUT_OF_RANGE (INVALID_ARGUMENT on the wire) when prompt and output
// exceed the longest sequence; CANCELLED: `stop` said so. `random_seed` is the seed of a request that has none. A text
// that cannot fit is refused before it is tokenised.
absl::StatusOr<ValidatedRequest> ValidateGenerate(const v1::GenerateRequest& request, const ValidationContext& context,
                                                  uint64_t random_seed, const StopCheck& stop = {});

// Like ValidateGenerate, for a request for an embedding. OUT_OF_RANGE: the prompt exceeds the longest sequence.
// INVALID_ARGUMENT also where the model has an encoder.
absl::StatusOr<ValidatedRequest> ValidateEmbed(const v1::EmbedRequest& request, const ValidationContext& context,
                                               const StopCheck& stop = {});

// INVALID_ARGUMENT: the request's outputs cannot be streamed.
absl::Status CheckStreamed(const OutputOptions& output);

// The tokens of a text or chat, and the text they were made from; the text of tokens. Same codes; OUT_OF_RANGE also for
// a text that is too long for an answer (decode_text.h).
absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request, const ValidationContext& context,
                                              const StopCheck& stop = {});
absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                  const ValidationContext& context, const StopCheck& stop = {});

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_VALIDATION_H_
