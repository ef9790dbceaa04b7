// What a client asks for, in berth.v1's words, and what the way to the engine has to know of it. Functions;
// thread-safe.
#ifndef BERTH_SERVER_REQUEST_MESSAGE_H_
#define BERTH_SERVER_REQUEST_MESSAGE_H_

#include <cstdint>
#include <optional>
#include <variant>

#include "absl/status/statusor.h"
#include "berth/v1/inference.pb.h"
#include "berth/v1/sessions.pb.h"
#include "server/request/stages.h"
#include "server/request/validated_request.h"

namespace berth {

// Each lives as long as its call.
using Message = std::variant<const v1::GenerateRequest*, const v1::EmbedRequest*, const v1::ResumeSessionRequest*>;

// Gives back the memory of a message that gRPC made for a call, and that nothing reads any more. gRPC itself keeps a
// message until its call ends. That may be long, and fields that this server does not know are bounded by the limit of
// messages alone.
template <typename M>
void FreeMessage(const M* message) {
  M().Swap(const_cast<M*>(message));  // gRPC's object is not const, only its way here
}
void FreeMessage(const Message& message);

// A seed that clients cannot foresee.
uint64_t RandomSeed();

Asker AskerOf(const Message& message);

// What a message that is work for the text pool takes in memory: many small parts take far more than they do on their
// way. None: it has no text.
std::optional<int64_t> TextBytes(const Message& message);

// Checks and tokenises the message, and blocks meanwhile. CANCELLED: `stop` said so. INVALID_ARGUMENT also where the
// answer cannot be streamed. REQUIRES: it resumes no session.
absl::StatusOr<ValidatedRequest> Validate(const Message& message, bool stream, const ValidationContext& context,
                                          const StopCheck& stop);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_MESSAGE_H_
