// Reads the field `structure` of a request. Thread-safe.
#ifndef BERTH_SERVER_REQUEST_STRUCTURE_H_
#define BERTH_SERVER_REQUEST_STRUCTURE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "berth/v1/inference.pb.h"
#include "server/delivery/text_codec.h"
#include "server/request/validated_request.h"
#include "text/grammar_spec.h"

namespace berth {

// Returns what `in.structure` asks for, not compiled yet. INVALID_ARGUMENT naming the field, the value and the limit.
absl::StatusOr<GrammarSpec> ReadStructure(const v1::GenerateRequest& in, const ValidationContext& context);

// Lets the structure begin at once where its begin_text is the end of the prompt already.
absl::Status BeginAfterPrompt(absl::Span<const int32_t> prompt, const TextCodec& text, GrammarSpec* spec);

// Returns the error of a compilation, which then names the request's field too: "structure.regex: ...".
absl::Status NameStructure(const GrammarSpec& spec, const absl::Status& error);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_STRUCTURE_H_
