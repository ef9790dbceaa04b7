#include "server/request/message.h"

#include <random>

#include "server/request/validation.h"

namespace berth {
namespace {

const v1::GenerateRequest* AsGenerate(const Message& message) {
  const auto* const* request = std::get_if<const v1::GenerateRequest*>(&message);
  return request == nullptr ? nullptr : *request;
}

const v1::EmbedRequest* AsEmbed(const Message& message) {
  const auto* const* request = std::get_if<const v1::EmbedRequest*>(&message);
  return request == nullptr ? nullptr : *request;
}

}  // namespace

void FreeMessage(const Message& message) {
  std::visit([](const auto* of_call) { FreeMessage(of_call); }, message);
}

uint64_t RandomSeed() {
  std::random_device device;  // of the kernel; not a stream that an earlier seed would give away
  return uint64_t{device()} << 32 | device();
}

Asker AskerOf(const Message& message) {
  if (const v1::GenerateRequest* request = AsGenerate(message)) {
    return {.field = "cache_salt", .tenant = request->cache_salt(), .priority = request->priority()};
  }
  if (const v1::EmbedRequest* request = AsEmbed(message)) {
    return {.field = "cache_salt", .tenant = request->cache_salt(), .priority = request->priority()};
  }
  return {.field = "tenant", .tenant = std::get<const v1::ResumeSessionRequest*>(message)->tenant()};
}

std::optional<int64_t> TextBytes(const Message& message) {
  if (const v1::GenerateRequest* request = AsGenerate(message)) {
    if (!request->has_prompt() && !request->has_chat() && !request->has_structure()) return std::nullopt;
    return static_cast<int64_t>(request->SpaceUsedLong());
  }
  const v1::EmbedRequest* const request = AsEmbed(message);
  if (request == nullptr || !request->has_prompt()) return std::nullopt;
  return static_cast<int64_t>(request->SpaceUsedLong());
}

absl::StatusOr<ValidatedRequest> Validate(const Message& message, bool stream, const ValidationContext& context,
                                          const StopCheck& stop) {
  if (const v1::EmbedRequest* request = AsEmbed(message)) return ValidateEmbed(*request, context, stop);
  absl::StatusOr<ValidatedRequest> valid = ValidateGenerate(*AsGenerate(message), context, RandomSeed(), stop);
  if (!valid.ok() || !stream) return valid;
  if (absl::Status s = CheckStreamed(valid->output); !s.ok()) return s;
  return valid;
}

}  // namespace berth
