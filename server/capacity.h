// Computes the sizes that follow from the settings, the model and the machine: how long a sequence may be, how large
// the arena is, and what it holds. Thread-safe.
#ifndef BERTH_SERVER_CAPACITY_H_
#define BERTH_SERVER_CAPACITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/spec.h"
#include "models/device_choice.h"
#include "models/model_runner.h"
#include "scheduler/scheduler.h"
#include "server/config.h"

namespace berth {

// The default length of a sequence where the model allows more, or does not say. Some models name ten million
// positions; a default must not promise what no machine holds.
inline constexpr int64_t kDefaultMaxSequenceTokens = 32768;

// The length of prompt and output together: max_sequence_tokens if it is set, else the model's limit, at most
// kDefaultMaxSequenceTokens.
int64_t MaxSequenceTokens(const Scheduler::Options& options, const ModelInfo& model);

// The default length of an encoder's input where the model allows more, or does not say.
inline constexpr int64_t kDefaultEncoderTokens = 1024;

// Raises the default of max_step_tokens where the model has an encoder, which reads its input in one step. A step then
// holds what the encoder reads, at most kDefaultEncoderTokens, and a token of the decoder.
void SetEncoderDefaults(const CachePlan& plan, const ModelInfo& model, Config* config);

// What decides how much cache a sequence takes.
struct SequenceShape {
  int64_t num_tokens = 0;
  int64_t step_tokens = 0;         // the most tokens that it grows by at a time
  int64_t num_encoder_tokens = 0;  // of models with an encoder
};

// The shape of the longest sequence that is accepted. Its encoder reads what one step holds beside a token.
SequenceShape LongestSequence(const Scheduler::Options& options, int64_t max_tokens);

// The smallest arena in which `num_sequences` such sequences fit at once. Saturates at 2^60.
int64_t ArenaBytesFor(const CachePlan& plan, int64_t num_sequences, const SequenceShape& shape);

// How many such sequences an arena of `arena_bytes` holds at once; at most `limit`.
int64_t SequencesIn(const CachePlan& plan, int64_t arena_bytes, const SequenceShape& shape, int64_t limit);

// The longest sequence that an arena of `arena_bytes` holds, at most `limit`: the cache's own answer
// (Cache::MaxSequenceTokens), before there is an arena.
int64_t LongestSequenceIn(const CachePlan& plan, int64_t arena_bytes, const Scheduler::Options& options, int64_t limit);

// Returns --arena if it is set. Else a quarter of `available_bytes`, but no more than max_running sequences of
// `max_tokens` fill, and no less than one needs. RESOURCE_EXHAUSTED when --arena, or what one needs, is more than is
// available. `available_bytes` 0: unknown.
absl::StatusOr<int64_t> ChooseArenaBytes(const Config& config, const CachePlan& plan, int64_t max_tokens,
                                         int64_t available_bytes);

// How much of a GPU's memory stays free beside weights and arena: max(2 GiB, 6 % of all). It is for the tensors of the
// largest step, the libraries' workspaces and code, and the allocator's fragments. CUDA graphs share their tensors'
// memory, which is that of one step more.
int64_t GpuReserveBytes(int64_t total_bytes);

// Returns --arena if it is set. Else all of the GPU's free memory but the reserve, since nothing else uses it: what
// sequences do not fill keeps prefixes. RESOURCE_EXHAUSTED when one sequence of `max_tokens` needs more. REQUIRES: the
// weights are loaded.
absl::StatusOr<int64_t> ChooseGpuArenaBytes(const Config& config, const CachePlan& plan, int64_t max_tokens,
                                            const DeviceMemory& memory);

// Says before the load what the load cannot change. RESOURCE_EXHAUSTED: the GPU's free memory is not more than the
// reserve, so --arena=auto cannot work.
absl::Status CheckFreeGpuMemory(const Config& config, const DeviceMemory& memory);

// The length of the sequences that DescribeCache counts, so that models and machines can be compared. It counts shorter
// ones if the longest sequence is shorter.
inline constexpr int64_t kComparedSequenceTokens = 8000;

// Describes the plan. There is a line for each group and one for the whole arena. Then follow one for what a token and
// a sequence take, and one for how many sequences fit. `max_tokens`: of the longest sequence.
std::vector<std::string> DescribeCache(const CachePlan& plan, int64_t arena_bytes, int64_t max_tokens,
                                       const Scheduler::Options& options);

}  // namespace berth

#endif  // BERTH_SERVER_CAPACITY_H_
