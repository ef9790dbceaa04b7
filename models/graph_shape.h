// The sizes that decode steps are padded to, so that a CUDA graph recorded of one computes them all. No torch here.
#ifndef BERTH_MODELS_GRAPH_SHAPE_H_
#define BERTH_MODELS_GRAPH_SHAPE_H_

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <vector>

namespace berth {

// The least power of two that is not below `value`.
inline int64_t PowerOfTwoFrom(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
}

// A size that steps of one token a row are filled up to. Both are powers of two.
struct GraphShape {
  int64_t rows;  // at least the step's
  int64_t keys;  // at least what its longest row sees

  friend bool operator==(const GraphShape&, const GraphShape&) = default;
  friend auto operator<=>(const GraphShape&, const GraphShape&) = default;
};

inline constexpr int64_t kMostGraphRows = 256;   // steps with more rows run without graphs
inline constexpr int64_t kLeastGraphKeys = 256;  // of a shape
// Each has some hundred nodes, and its logits.
inline constexpr int64_t kMostGraphShapes = 64;

// The shapes of steps of up to `max_rows` sequences of up to `max_tokens` tokens, those of few keys first; at most
// kMostGraphShapes.
inline std::vector<GraphShape> GraphShapesOf(int64_t max_rows, int64_t max_tokens) {
  std::vector<GraphShape> shapes;
  const int64_t most_rows = PowerOfTwoFrom(std::min(max_rows, kMostGraphRows));
  const int64_t most_keys = std::max(PowerOfTwoFrom(max_tokens), kLeastGraphKeys);
  for (int64_t keys = kLeastGraphKeys; keys <= most_keys; keys *= 2) {
    for (int64_t rows = 1; rows <= most_rows; rows *= 2) {
      if (static_cast<int64_t>(shapes.size()) < kMostGraphShapes) shapes.push_back({.rows = rows, .keys = keys});
    }
  }
  return shapes;
}

}  // namespace berth

#endif  // BERTH_MODELS_GRAPH_SHAPE_H_
