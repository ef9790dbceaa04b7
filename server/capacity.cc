#include "server/capacity.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "flags/units.h"

// The bytes of n equal sequences follow from the plan: units per sequence in each group, times the size of a unit. They
// grow with n and with the length, so how many sequences fit, and how long one may be, is found by bisection.
namespace berth {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 60;
constexpr int64_t kArenaBytes = 4096;  // an arena chosen here is a multiple: whole pages

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t SaturatingMultiply(int64_t a, int64_t b) { return b > 0 && a > kMaxBytes / b ? kMaxBytes : a * b; }

// The largest n in [0, limit] for which `fits` holds, as it does for every smaller one.
template <typename Fits>
int64_t LargestThat(int64_t limit, const Fits& fits) {
  int64_t low = 0, high = limit;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Units of `group` that a sequence holds at its fullest; the cache's own rule (Cache::UnitsForSequence).
int64_t UnitsOfSequence(const CachePlan& plan, const CacheGroup& group, const SequenceShape& shape) {
  if (group.of_states()) return group.kind == CacheKind::kRecurrent ? 1 : 0;
  if (group.kind == CacheKind::kCross) return CeilDiv(shape.num_encoder_tokens, plan.block_tokens);
  const int64_t blocks = CeilDiv(shape.num_tokens, plan.block_tokens);
  const int64_t reach = group.kv.Reach();
  if (reach == 0) return blocks;
  return std::min(
      blocks, group.kv.SinkBlocks(plan.block_tokens) + CeilDiv(reach - 1 + shape.step_tokens, plan.block_tokens) + 1);
}

std::string DescribeGroup(const CachePlan& plan, size_t index, int64_t arena_bytes) {
  const CacheGroup& group = plan.groups[index];
  const int64_t units = arena_bytes / group.unit_bytes;
  std::string text = absl::StrCat("cache group ", index, ": ", CacheKindName(group.kind), ", ", group.layers.size(),
                                  group.layers.size() == 1 ? " layer" : " layers");
  if (group.of_states()) {
    const bool checkpoints = group.kind == CacheKind::kCheckpoint;
    absl::StrAppend(&text, checkpoints ? ", int8 with scales" : "", ", ", FormatByteSize(group.unit_bytes), " per ",
                    checkpoints ? "checkpoint" : "sequence", "; the whole arena would hold ", units,
                    checkpoints ? " checkpoints" : " sequences");
    return text;
  }
  absl::StrAppend(&text, ", ", DTypeName(group.kv.dtype), IsQuantised(group.kv.dtype) ? " with scales" : "");
  if (group.kv.window > 0) absl::StrAppend(&text, ", window of ", group.kv.window, " tokens");
  if (group.kv.sink_tokens > 0) absl::StrAppend(&text, " and the first ", group.kv.sink_tokens);
  if (group.kv.chunk > 0) absl::StrAppend(&text, ", chunks of ", group.kv.chunk, " tokens");
  const absl::string_view token = group.kind == CacheKind::kCross ? "encoder token" : "token";
  absl::StrAppend(&text, ", ", FormatByteSize(group.unit_bytes / plan.block_tokens), " per ", token, " in blocks of ",
                  plan.block_tokens, "; the whole arena would hold ", units * plan.block_tokens, " ", token, "s");
  return text;
}

// "cache: 4096 bytes per token, 1024 past the windows, 16384 bytes per sequence".
std::string DescribeCost(const CachePlan& plan) {
  int64_t token_bytes = 0, late_token_bytes = 0, encoder_token_bytes = 0, sequence_bytes = 0;
  for (const CacheGroup& group : plan.groups) {
    const int64_t bytes_of_token = group.unit_bytes / plan.block_tokens;
    if (group.kind == CacheKind::kRecurrent) sequence_bytes += group.unit_bytes;
    if (group.of_states()) continue;
    if (group.kind == CacheKind::kCross) {
      encoder_token_bytes += bytes_of_token;
      continue;
    }
    token_bytes += bytes_of_token;
    if (group.kv.Reach() == 0) late_token_bytes += bytes_of_token;
  }
  std::string text = absl::StrCat("cache: ", token_bytes, " bytes per token");
  if (late_token_bytes != token_bytes) absl::StrAppend(&text, ", ", late_token_bytes, " past the windows");
  if (encoder_token_bytes > 0) absl::StrAppend(&text, ", ", encoder_token_bytes, " bytes per encoder token");
  absl::StrAppend(&text, ", ", sequence_bytes, " bytes per sequence");
  return text;
}

// "sequences of 8000 tokens: 64 fit at once, each takes 16 MiB (16777216 bytes)".
std::string DescribeSequences(const CachePlan& plan, int64_t arena_bytes, int64_t num_tokens,
                              const Scheduler::Options& options) {
  constexpr int64_t kMost = 1 << 20;
  const SequenceShape shape = LongestSequence(options, num_tokens);
  const int64_t bytes = ArenaBytesFor(plan, 1, shape);
  return absl::StrCat("sequences of ", num_tokens, " tokens: ", SequencesIn(plan, arena_bytes, shape, kMost),
                      " fit at once, each takes ", FormatByteSize(bytes), " (", bytes, " bytes)");
}

}  // namespace

int64_t MaxSequenceTokens(const Scheduler::Options& options, const ModelInfo& model) {
  if (options.max_sequence_tokens > 0) return options.max_sequence_tokens;
  return model.max_positions > 0 ? std::min(model.max_positions, kDefaultMaxSequenceTokens) : kDefaultMaxSequenceTokens;
}

void SetEncoderDefaults(const CachePlan& plan, const ModelInfo& model, Config* config) {
  if (!plan.has_cross() || config->max_step_tokens.has_value()) return;
  Scheduler::Options& scheduler = config->engine.scheduler;
  const int64_t encoder_tokens = std::min(MaxSequenceTokens(scheduler, model), kDefaultEncoderTokens);
  scheduler.max_step_tokens = std::max(scheduler.max_step_tokens, encoder_tokens + 1);
}

SequenceShape LongestSequence(const Scheduler::Options& options, int64_t max_tokens) {
  return {.num_tokens = max_tokens,
          .step_tokens = options.prefill_chunk_tokens,
          .num_encoder_tokens = std::min(max_tokens, options.max_step_tokens - 1)};
}

int64_t ArenaBytesFor(const CachePlan& plan, int64_t num_sequences, const SequenceShape& shape) {
  int64_t bytes = 0;
  for (const CacheGroup& group : plan.groups) {
    const int64_t units = SaturatingMultiply(num_sequences, UnitsOfSequence(plan, group, shape));
    bytes = std::min(kMaxBytes, bytes + SaturatingMultiply(units, group.unit_bytes));
  }
  return bytes;
}

int64_t SequencesIn(const CachePlan& plan, int64_t arena_bytes, const SequenceShape& shape, int64_t limit) {
  return LargestThat(limit, [&](int64_t n) { return ArenaBytesFor(plan, n, shape) <= arena_bytes; });
}

int64_t LongestSequenceIn(const CachePlan& plan, int64_t arena_bytes, const Scheduler::Options& options,
                          int64_t limit) {
  return LargestThat(limit,
                     [&](int64_t n) { return ArenaBytesFor(plan, 1, LongestSequence(options, n)) <= arena_bytes; });
}

absl::StatusOr<int64_t> ChooseArenaBytes(const Config& config, const CachePlan& plan, int64_t max_tokens,
                                         int64_t available_bytes) {
  if (config.arena_bytes > 0) {
    if (available_bytes == 0 || config.arena_bytes <= available_bytes) return config.arena_bytes;
    return absl::ResourceExhaustedError(absl::StrCat("--arena: ", FormatByteSize(config.arena_bytes),
                                                     " is more than the memory available beside the weights, ",
                                                     FormatByteSize(available_bytes)));
  }
  const Scheduler::Options& options = config.engine.scheduler;
  const SequenceShape shape = LongestSequence(options, max_tokens);
  const int64_t one = ArenaBytesFor(plan, 1, shape);
  if (one > available_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "--arena: one sequence of ", max_tokens, " tokens needs ", FormatByteSize(one), " of cache, but only ",
        FormatByteSize(available_bytes), " of memory is available; lower --max_sequence_tokens or set --arena"));
  }
  const int64_t all = ArenaBytesFor(plan, options.max_running, shape);
  const int64_t quarter = available_bytes / 4 / kArenaBytes * kArenaBytes;
  return std::max(one, std::min(quarter, all));
}

int64_t GpuReserveBytes(int64_t total_bytes) { return std::max(int64_t{2} << 30, total_bytes / 100 * 6); }

absl::StatusOr<int64_t> ChooseGpuArenaBytes(const Config& config, const CachePlan& plan, int64_t max_tokens,
                                            const DeviceMemory& memory) {
  if (config.arena_bytes > 0) return config.arena_bytes;
  const Scheduler::Options& options = config.engine.scheduler;
  const int64_t one = ArenaBytesFor(plan, 1, LongestSequence(options, max_tokens));
  const int64_t reserve = GpuReserveBytes(memory.total_bytes);
  const int64_t left = (memory.free_bytes - reserve) / kArenaBytes * kArenaBytes;
  if (left >= one) return left;
  return absl::ResourceExhaustedError(absl::StrCat(
      "--arena: one sequence of ", max_tokens, " tokens needs ", FormatByteSize(one), " of cache. The weights leave ",
      FormatByteSize(memory.free_bytes), " of the GPU's memory, and ", FormatByteSize(reserve),
      " of that stay free for steps; lower --max_sequence_tokens or set --arena"));
}

absl::Status CheckFreeGpuMemory(const Config& config, const DeviceMemory& memory) {
  if (config.arena_bytes > 0) return absl::OkStatus();
  const int64_t reserve = GpuReserveBytes(memory.total_bytes);
  if (memory.free_bytes > reserve) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "--arena: of the GPU's ", FormatByteSize(memory.total_bytes), " only ", FormatByteSize(memory.free_bytes),
      " are free, and auto keeps ", FormatByteSize(reserve), " for steps; end what else uses the GPU, or set --arena"));
}

std::vector<std::string> DescribeCache(const CachePlan& plan, int64_t arena_bytes, int64_t max_tokens,
                                       const Scheduler::Options& options) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < plan.groups.size(); ++i) lines.push_back(DescribeGroup(plan, i, arena_bytes));
  const SequenceShape shape = LongestSequence(options, max_tokens);
  const std::string encoder =
      plan.has_cross() ? absl::StrCat(" and ", shape.num_encoder_tokens, " encoder tokens") : "";
  lines.push_back(absl::StrCat("cache arena: ", FormatByteSize(arena_bytes), "; a sequence of ", max_tokens, " tokens",
                               encoder, " takes ", FormatByteSize(ArenaBytesFor(plan, 1, shape)), "; ",
                               SequencesIn(plan, arena_bytes, shape, options.max_running), " of at most ",
                               options.max_running, " such sequences fit at once"));
  lines.push_back(DescribeCost(plan));
  lines.push_back(DescribeSequences(plan, arena_bytes, std::min(kComparedSequenceTokens, max_tokens), options));
  return lines;
}

}  // namespace berth
