// The rows of a step as kernels read them: plain data in memory of the kernel's device, for CPU and CUDA alike.
#ifndef BERTH_MODELS_STEP_ROW_H_
#define BERTH_MODELS_STEP_ROW_H_

#include <stdint.h>

namespace berth::ops {

// One row of the ragged batch: its tokens are [first_token, first_token + num_tokens) of the packed tensors, at
// absolute positions start, start + 1, ...
struct Row {
  int64_t first_token;
  int64_t num_tokens;
  int64_t start;
  // CUDA: the first result of its tokens in the memory for divided keys, of attention and of cross-attention; of the
  // step's leading rows only. A token has as many results as its row has parts of keys.
  int64_t first_partial = 0;
  int64_t first_cross_partial = 0;
};

// A row's blocks of one KV group; see BlockTable in cache/lease.h.
struct Blocks {
  const int64_t* offsets;
  int64_t sink_blocks, expired_blocks;
  int64_t num_offsets;  // for who copies them

  // Byte of the arena where block `b` begins.
  int64_t At(int64_t b) const { return offsets[b < sink_blocks ? b : b - expired_blocks]; }
};

// Attention works on tiles of a row's queries: up to this many, a matrix tile's rows of one head.
inline constexpr int64_t kQueryTile = 16;

// CUDA's attention divides keys into parts of this many positions.
inline constexpr int64_t kSplitTokens = 256;
constexpr int64_t NumSplits(int64_t keys) { return (keys + kSplitTokens - 1) / kSplitTokens; }

}  // namespace berth::ops

#endif  // BERTH_MODELS_STEP_ROW_H_
