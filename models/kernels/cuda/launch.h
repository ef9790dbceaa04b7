// What a CUDA kernel is launched with, and what an entry of the table returns. Plain data, for g++ and nvcc alike.
#ifndef BERTH_MODELS_KERNELS_CUDA_LAUNCH_H_
#define BERTH_MODELS_KERNELS_CUDA_LAUNCH_H_

#include <stdint.h>

namespace berth::ops {

// How attention divides keys among blocks of threads. It divides those of the step's first `num_tiles` tiles, where
// each tile is a row, into parts of kSplitTokens positions. All other tiles walk through the same parts one after the
// other and add them in the same way, so a token's bits do not depend on the choice.
struct SplitKv {
  int64_t num_tiles;
  int64_t tile_tokens;   // of the longest of these rows, or more
  int64_t num_splits;    // parts of the row with the most keys, or more; 0: no keys are divided
  int64_t num_partials;  // results: for each token one of each part of its row
};
// Floats of the results: for each head the part's largest score, its sum, and its sum of values.
inline constexpr int64_t SplitKvFloats(const SplitKv& split, int64_t q_heads, int64_t value_dim) {
  return split.num_partials * q_heads * (value_dim + 2);
}

}  // namespace berth::ops

namespace berth::ops::cuda {

// The step, as far as launches depend on it.
struct LaunchParams {
  int64_t num_tokens;
  int64_t num_rows;
  const int64_t* tiles;  // [num_tiles, 2], device memory: row, first query of the tile within the row
  int64_t num_tiles;
  int64_t longest_row;   // in tokens
  int64_t max_position;  // of the step's tokens, or more
  SplitKv split;         // for attention
  void* stream;          // cudaStream_t
};

// What an entry returns; any other number is a cudaError_t.
enum Result : int {
  kLaunched = 0,
  kNotCovered = -1,  // nothing was done: there is no code for these sizes
};

// The 16 bits of a bfloat16.
struct BFloat16 {
  uint16_t bits;
};

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_KERNELS_CUDA_LAUNCH_H_
