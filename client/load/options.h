// The flags of `berth-cli load`. Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_OPTIONS_H_
#define BERTH_CLIENT_LOAD_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/load/lengths.h"
#include "client/load/report.h"
#include "client/load/workload.h"
#include "flags/flag_set.h"

namespace berth::cli {

struct LoadOptions {
  ConnectionOptions connection;

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
  int64_t prefix_tokens = 0;  // 0: no shared prefix
  int64_t num_prefixes = 1;
  int64_t turns = 1;
  LengthDistribution turn_tokens = LengthDistribution::Fixed(64);
  History history = History::kGrow;
  std::string trace;       // file; "": none
  double trace_speed = 1;  // above 1: arrivals follow one another faster
  int64_t warmup = 0;      // requests
  bool find_capacity = false;

  bool verify = false;
  int64_t verify_prompts = 16;
  bool allow_errors = false;
  GoodputLimits limits;

  std::string json_out;
  std::string vllm_json_out;
  std::string html_out;
  std::optional<bool> progress;

  void AddTo(FlagSet* flags);

  bool open_loop() const { return rate.has_value() || !trace.empty(); }
  // "4 turns, grow"; "": each conversation has one request.
  std::string DescribeConversations() const;
  LengthDistribution PromptTokens() const { return prompt_tokens.value_or(LengthDistribution::Fixed(128)); }

  // INVALID_ARGUMENT naming the flag: a value out of its range, or two flags that exclude each other.
  absl::Status Validate() const;
};

// The help above the flags: loops and definitions.
extern const char kLoadIntro[];

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_OPTIONS_H_
