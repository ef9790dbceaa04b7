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

}  // namespace berth::ops

#endif  // BERTH_MODELS_STEP_ROW_H_
