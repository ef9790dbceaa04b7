// Learns in which order weights are read, so that those to come can be read ahead.
#ifndef BERTH_MODELS_STEP_READ_ORDER_H_
#define BERTH_MODELS_STEP_READ_ORDER_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace berth {

struct ReadRange {
  const char* begin = nullptr;
  int64_t size_bytes = 0;
};

// A model's steps read the same weights in the same order, time after time. Thread-compatible. Allocates when it sees a
// range for the first time, which a warm-up does.
class ReadOrder {
 public:
  // `range` is read now. Returns what was read after it the last time, or an empty range.
  ReadRange Follow(ReadRange range) {
    next_[last_] = range;
    last_ = range.begin;
    const auto found = next_.find(last_);
    return found == next_.end() ? ReadRange{} : found->second;
  }

 private:
  absl::flat_hash_map<const char*, ReadRange> next_;  // by the beginning of the range before
  const char* last_ = nullptr;
};

}  // namespace berth

#endif  // BERTH_MODELS_STEP_READ_ORDER_H_
