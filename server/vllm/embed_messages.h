// The messages of VllmEngine.Embed as those of berth.v1, and back. Functions; thread-safe.
#ifndef BERTH_SERVER_VLLM_EMBED_MESSAGES_H_
#define BERTH_SERVER_VLLM_EMBED_MESSAGES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "berth/v1/inference.pb.h"
#include "server/request/validated_request.h"
#include "vllm/engine.pb.h"

namespace berth {

// What vLLM computes by default for a model that generates: the last token's state, normalised. INVALID_ARGUMENT naming
// the field. The rest is checked by berth.v1.
absl::StatusOr<v1::EmbedRequest> ToBerth(const ::vllm::grpc::engine::EmbedRequest& in,
                                         const ValidationContext& context);

// `end` is what berth.v1 says of the request's end.
::vllm::grpc::engine::EmbedResponse EmbedResponseOf(const std::vector<float>& embedding,
                                                    const v1::GenerateResponse& end);

}  // namespace berth

#endif  // BERTH_SERVER_VLLM_EMBED_MESSAGES_H_
