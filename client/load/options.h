// The flags of `berth-cli load`. Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_OPTIONS_H_
#define BERTH_CLIENT_LOAD_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/load/lengths.h"
#include "client/load/report.h"
#include "flags/flag_set.h"

namespace berth::cli {

struct LoadOptions {
  std::string server;

  std::optional<int64_t> concurrency;  // closed loop; absent without a rate: 1
  std::optional<double> rate;          // open loop
  std::optional<int64_t> requests;     // absent without a duration: 100
  std::optional<absl::Duration> duration;
  std::optional<absl::Duration> timeout;
  uint64_t seed = 0;

  std::optional<LengthDistribution> prompt_tokens;  // absent: PromptTokens()
  LengthDistribution output_tokens = LengthDistribution::Fixed(64);
  std::string prompt_file;
  double temperature = 0;

  bool verify = false;
  int64_t verify_prompts = 16;
  bool allow_errors = false;
  GoodputLimits limits;

  std::string json_out;
  std::optional<bool> progress;

  void AddTo(FlagSet* flags);

  LengthDistribution PromptTokens() const { return prompt_tokens.value_or(LengthDistribution::Fixed(128)); }

  // INVALID_ARGUMENT naming the flag: a value out of its range, or two flags that exclude each other.
  absl::Status Validate() const;
};

// The help above the flags: loops and definitions.
extern const char kLoadIntro[];

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_OPTIONS_H_
