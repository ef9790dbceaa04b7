// The flags of a request: one for each field of GenerateRequest and of its messages Sampling, Stopping, BeamSearch and
// Structure. Name, kind of value and help come from the proto, so that a new field is a flag at once, with its comment
// as help. The server checks ranges; its errors name field, value and limit. Thread-compatible.
#ifndef BERTH_CLIENT_REQUEST_FLAGS_H_
#define BERTH_CLIENT_REQUEST_FLAGS_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "berth/v1/inference.pb.h"
#include "flags/flag_set.h"

namespace berth::cli {

// Adds flags that set the fields of `*request`, which must outlive the set's last Parse. A flag that is not given
// leaves its field absent. The inputs (`prompt`, `chat`, `token_ids`) and the fields in `left_out` have no flag.
void AddRequestFlags(absl::Span<const absl::string_view> left_out, v1::GenerateRequest* request, FlagSet* flags);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_REQUEST_FLAGS_H_
