// The requests of a load test: prompts and lengths, the same for the same seed. Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_WORKLOAD_H_
#define BERTH_CLIENT_LOAD_WORKLOAD_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "berth/v1/control.pb.h"
#include "berth/v1/inference.pb.h"
#include "client/load/lengths.h"

namespace berth::cli {

struct WorkItem {
  v1::GenerateRequest request;
  int64_t output_tokens = 0;   // asked for, exactly
  int64_t prompt_tokens = -1;  // -1: not known here (text)
  int64_t reference = 0;       // items with the same one are the same request
  bool shortened = false;      // to the server's limit
};

class Workload {
 public:
  struct Options {
    LengthDistribution prompt_tokens = LengthDistribution::Fixed(128);
    LengthDistribution output_tokens = LengthDistribution::Fixed(64);
    std::vector<std::string> prompts = {};  // sent in turn instead of random token ids, when not empty
    double temperature = 0;                 // above 0, each item carries a sampling seed of its own
    int64_t num_distinct = 0;               // the items repeat after this many; 0: never
    uint64_t seed = 0;
  };

  // FAILED_PRECONDITION when `model` tells no vocabulary to draw from.
  static absl::StatusOr<Workload> Create(Options options, const v1::GetModelInfoResponse& model);

  // Item `index`, whatever was made before. Prompts are token ids drawn evenly from the vocabulary without the end
  // tokens; end tokens are ignored, so that the output has exactly its length. What exceeds the server's longest
  // sequence is shortened, the output first.
  WorkItem Make(int64_t index) const;

 private:
  Workload(Options options, const v1::GetModelInfoResponse& model);

  // Shortens to max_sequence_tokens_. `*prompt_tokens` < 0: unknown, left alone.
  bool Shorten(int64_t* prompt_tokens, int64_t* output_tokens) const;
  void FillTokens(int64_t num_tokens, std::mt19937_64& random, v1::TokenIds* tokens) const;

  Options options_;
  int64_t max_sequence_tokens_;      // 0: not known
  std::vector<int32_t> end_tokens_;  // inside the vocabulary, ascending
  int64_t vocab_size_;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_WORKLOAD_H_
