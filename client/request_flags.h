// The sampling and stopping flags that `generate` and `chat` share. Ranges are the server's to check: its errors name
// field, value and limit. Thread-compatible.
#ifndef BERTH_CLIENT_REQUEST_FLAGS_H_
#define BERTH_CLIENT_REQUEST_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "berth/v1/inference.pb.h"
#include "flags/flag_set.h"

namespace berth::cli {

// An absent value is left to the server's default.
struct RequestFlags {
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<std::string> logit_bias;  // "ID:BIAS" each
  std::optional<uint64_t> seed;

  std::optional<uint32_t> max_tokens;
  std::optional<uint32_t> min_tokens;
  std::vector<std::string> stop;
  std::vector<std::string> stop_token_ids;  // ids, comma-separated
  bool ignore_eos = false;
  bool include_stop = false;

  bool keep_special_tokens = false;  // in the text

  void AddTo(FlagSet* flags);

  // INVALID_ARGUMENT naming the flag when an id or a bias is not a number.
  absl::Status Fill(v1::GenerateRequest* request) const;

 private:
  absl::Status FillLists(v1::GenerateRequest* request) const;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_REQUEST_FLAGS_H_
