// The sizes that decode steps are padded to, so that a CUDA graph recorded of one computes them all. No torch here.
#ifndef BERTH_MODELS_GRAPH_SHAPE_H_
#define BERTH_MODELS_GRAPH_SHAPE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "models/step/row.h"

namespace berth {

inline constexpr int64_t kMostGraphRows = 256;               // steps with more rows run without graphs
inline constexpr int64_t kMostGraphKeys = int64_t{1} << 17;  // and steps with a row that sees more keys
// Parts of kSplitTokens keys of a step's rows, summed: a million tokens. They bound the memory for divided keys. Steps
// with more run without graphs.
inline constexpr int64_t kMostGraphSplits = 4096;

// The least power of two that is not below `value`.
inline int64_t PowerOfTwoFrom(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
}

// The rows that steps of `rows` rows are filled up to: 1, 2, 4, and multiples of 8.
inline int64_t GraphRowsFor(int64_t rows) { return rows <= 4 ? PowerOfTwoFrom(rows) : (rows + 7) / 8 * 8; }

// A size that steps of one token a row are filled up to.
struct GraphShape {
  int64_t rows;  // at least the step's
  int64_t keys;  // at least what its longest row sees

  // At least the parts of keys that the step's rows have.
  int64_t splits() const { return std::min(rows * ops::NumSplits(keys), kMostGraphSplits); }
};

// The rows of the graphs for steps of up to `max_rows` rows, largest first: a graph then finds room for its tensors in
// the memory of those before it.
inline std::vector<int64_t> GraphRowsUpTo(int64_t max_rows) {
  std::vector<int64_t> sizes;
  for (int64_t rows = GraphRowsFor(std::min(max_rows, kMostGraphRows)); rows > 0;) {
    sizes.push_back(rows);
    rows = rows > 8 ? rows - 8 : rows / 2;
  }
  return sizes;
}

}  // namespace berth

#endif  // BERTH_MODELS_GRAPH_SHAPE_H_
