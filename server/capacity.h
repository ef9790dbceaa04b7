// How long a sequence may be, how large the arena is, and what that holds: the sizes that follow from the
// configuration, the model and the machine. Pure functions but for AvailableMemory; thread-safe.
#ifndef BERTH_SERVER_CAPACITY_H_
#define BERTH_SERVER_CAPACITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/spec.h"
#include "models/model_runner.h"
#include "server/config.h"

namespace berth {

// Where max_sequence_tokens is 0 and the model allows more, or does not say. Some models name ten million positions; a
// default must not promise what no machine holds.
inline constexpr int64_t kDefaultMaxSequenceTokens = 32768;

// Prompt + output of one sequence: what the user set, else the model's limit, at most kDefaultMaxSequenceTokens.
int64_t MaxSequenceTokens(const Config& config, const ModelInfo& model);

// What a sequence is measured as.
struct SequenceShape {
  int64_t num_tokens = 0;
  int64_t step_tokens = 0;         // it grows at most so many at a time
  int64_t num_encoder_tokens = 0;  // of models with an encoder
};

// The shape of the longest sequence that is accepted: an encoder reads at most what one step holds beside a token.
SequenceShape LongestSequence(const Config& config, int64_t max_tokens);

// The smallest arena in which `num_sequences` such sequences fit at once. Saturates at 2^60.
int64_t ArenaBytesFor(const CachePlan& plan, int64_t num_sequences, const SequenceShape& shape);

// How many such sequences an arena of `arena_bytes` holds at once; at most `limit`.
int64_t SequencesIn(const CachePlan& plan, int64_t arena_bytes, const SequenceShape& shape, int64_t limit);

// What --arena says; for auto a quarter of `available_bytes`, at most what max_running sequences of `max_tokens` fill,
// at least what one needs. RESOURCE_EXHAUSTED when auto would need more than is available.
absl::StatusOr<int64_t> ChooseArenaBytes(const Config& config, const CachePlan& plan, int64_t max_tokens,
                                         int64_t available_bytes);

// Memory that the process could still take: what the system has available, and what each control group around the
// process leaves of its limit (version 1 or 2). `root`: where /proc and /sys are; tests give a folder. 0: unknown.
int64_t AvailableMemory(const std::string& root = "");

// The plan in words, a line for each group and one for the whole arena.
std::vector<std::string> DescribeCache(const CachePlan& plan, int64_t arena_bytes, int64_t max_tokens,
                                       const Config& config);

}  // namespace berth

#endif  // BERTH_SERVER_CAPACITY_H_
