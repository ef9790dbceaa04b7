// A GenerateRequest as protobuf text. What validation lets pass, the engine takes, and a session file keeps.
#include "scheduler/request.h"
#include "server/request/validation.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/server/delivery/fake_text_codec.h"

namespace berth {
namespace {

struct Server {
  explicit Server(bool has_encoder) {
    model.vocab_size = kFakeVocabSize;
    model.eos_token_ids = {99};
    context.model = &model;
    context.text = &codec;
    context.limits = {.max_sequence_tokens = 64, .default_max_tokens = 16, .max_logprobs = 5, .max_text_bytes = 4096};
    if (!has_encoder) return;
    context.limits.max_encoder_tokens = 32;
    context.defaults.decoder_start_token_id = 95;
    context.defaults.forced_eos_token_ids = {99};
  }
  ModelInfo model;
  FakeTextCodec codec;
  ValidationContext context;
};

void Check(const v1::GenerateRequest& message, const Server& server) {
  const ValidationContext& context = server.context;
  const absl::StatusOr<ValidatedRequest> valid = ValidateGenerate(message, context, /*random_seed=*/7);
  if (!valid.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(valid.status()) || absl::IsOutOfRange(valid.status()),
               valid.status().ToString());
    return;
  }
  const absl::Status taken = ValidateRequest(valid->request, server.model.vocab_size,
                                             context.limits.max_sequence_tokens, context.limits.max_encoder_tokens);
  FUZZ_CHECK(taken.ok(), taken.ToString());
  FUZZ_CHECK(valid->request.num_sequences() <= context.limits.max_outputs, "too many outputs");
  if (!valid->session_request.has_value()) return;
  const absl::StatusOr<ValidatedRequest> again = ValidateGenerate(*valid->session_request, context, /*random_seed=*/8);
  FUZZ_CHECK(again.ok(), again.status().ToString());
  FUZZ_CHECK(again->request.sampling == valid->request.sampling && again->request.prompt == valid->request.prompt,
             "the session's request is another");
}

}  // namespace
}  // namespace berth

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const decoder = new berth::Server(/*has_encoder=*/false);
  static const auto* const encoder_decoder = new berth::Server(/*has_encoder=*/true);
  berth::v1::GenerateRequest message;
  if (!berth::ParseMessage(berth::TextOf(data, size), &message)) return -1;
  berth::Check(message, *decoder);
  berth::Check(message, *encoder_decoder);
  return 0;
}
