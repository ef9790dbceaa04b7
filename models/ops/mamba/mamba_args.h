// The arguments of the kernels of Mamba-1 and Mamba-2.
#ifndef BERTH_MODELS_OPS_MAMBA_MAMBA_ARGS_H_
#define BERTH_MODELS_OPS_MAMBA_MAMBA_ARGS_H_

#include <stdint.h>

#include "models/step/row.h"

namespace berth::ops {

// Mamba-1's recurrence, per channel: dt = softplus(dt + dt_bias); h = exp(dt A) h + dt B x; y = (C h + D x) silu(gate).
// Channels lie in `groups` equal groups, each with its own B and C.
// Items: rows * MambaTiles().
struct MambaScanArgs {
  char* arena;
  const Row* rows;
  const int64_t* units;
  int64_t state_offset;  // [state_dim, channels], float32: neighbouring channels fill a vector
  const void* x;         // [tokens, x_stride], channels columns
  const void* gate;      // [tokens, gate_stride], the same
  const void* dt;        // [tokens, dt_stride], the same
  const void* b;         // [tokens, b_stride], group g from column g * b_group_stride
  const void* c;
  const float* a;        // [state_dim, channels], negative
  const float* d;        // [channels]
  const float* dt_bias;  // [channels]
  void* out;             // [tokens, channels]
  int64_t x_stride, gate_stride, dt_stride, b_stride, b_group_stride, c_stride, c_group_stride;
  int64_t channels, state_dim, groups;
};
inline constexpr int64_t kMambaTile = 64;  // channels of one group per item

// Mamba-2's recurrence, per head: dt = softplus(dt + dt_bias), for the prompt's tokens within limits; h = exp(dt A) h +
// dt B x; y = C h + D x. Rows of kMamba2Chunked tokens or more go in chunks of matrix products, so a sum's order
// depends on the step's tokens. Items: rows * heads / heads_per_item.
struct Mamba2ScanArgs {
  char* arena;
  const Row* rows;
  const int64_t* units;
  int64_t state_offset;  // [heads, state_dim, head_dim], float32
  const void* xbc;       // [tokens, xbc_stride]: x [heads * head_dim], B [groups * state_dim], C the same
  const void* dt;        // [tokens, dt_stride], heads columns
  const float* a;        // [heads], negative
  const float* d;        // [heads]
  const float* dt_bias;  // [heads]
  void* out;             // [tokens, heads * head_dim]
  int64_t xbc_stride, dt_stride;
  int64_t heads, head_dim, state_dim, groups;
  const int64_t* prompt_lengths;  // by row: the limits of dt hold for positions below
  int64_t heads_per_item;         // divides heads / groups: they share the product of B and C
  int64_t chunked_from;           // rows of this many tokens or more go in chunks: kMamba2Chunked, or no row
  float dt_min, dt_max;
};
inline constexpr int64_t kMamba2Chunked = 16;  // tokens of a row in this step
inline constexpr int64_t kMamba2Chunk = 64;    // tokens of one matrix product

// Items of `mamba_scan` in one row.
inline constexpr int64_t MambaTiles(const MambaScanArgs& args) {
  return args.groups * ((args.channels / args.groups + kMambaTile - 1) / kMambaTile);
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_MAMBA_MAMBA_ARGS_H_
