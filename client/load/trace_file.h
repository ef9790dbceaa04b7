// A recorded load to replay: when requests arrived, how long they were, and which beginnings they shared. Functions;
// thread-safe.
//
// The file is JSONL, an object a line, in one of two forms:
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}
//     Mooncake's. The timestamp is in milliseconds. Each hash id stands for 512 tokens of the prompt: equal ids, equal
//     tokens. Tokens that no id covers are random.
//   {"arrival": 27.482, "prompt_tokens": 6955, "output_tokens": 52, "prefix_id": 7, "prefix_tokens": 1024}
//     The arrival is in seconds. The first prefix_tokens tokens are the same for the same prefix_id; the rest is
//     random. The last two fields may be absent.
// Arrivals count from the first line's. They must not decrease.
#ifndef BERTH_CLIENT_LOAD_TRACE_FILE_H_
#define BERTH_CLIENT_LOAD_TRACE_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace berth::cli {

// Some first tokens of a prompt: the same for the same id.
struct SharedTokens {
  uint64_t id = 0;
  int64_t num_tokens = 0;

  bool operator==(const SharedTokens&) const = default;
};

struct TraceEntry {
  absl::Duration arrival;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  std::vector<SharedTokens> shared;  // from the prompt's beginning, one after the other; at most prompt_tokens in all

  bool operator==(const TraceEntry&) const = default;
};

// INVALID_ARGUMENT naming line, field and value; NOT_FOUND: the file cannot be read, or has no line.
absl::StatusOr<std::vector<TraceEntry>> ReadTraceFile(const std::string& path);
absl::StatusOr<std::vector<TraceEntry>> ParseTrace(const std::string& text);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_TRACE_FILE_H_
