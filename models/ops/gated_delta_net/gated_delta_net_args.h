// The arguments of the gated delta net's kernels.
#ifndef BERTH_MODELS_OPS_GATED_DELTA_NET_GATED_DELTA_NET_ARGS_H_
#define BERTH_MODELS_OPS_GATED_DELTA_NET_GATED_DELTA_NET_ARGS_H_

#include <stdint.h>

#include "models/step/row.h"

namespace berth::ops {

// The gated delta rule (Yang et al., 2024), per value head:
//   S = decay S;  d = beta (v - S^T k);  S = S + k d^T;  y = S^T q
//
// where decay = exp(rate * softplus(a + dt_bias)) and beta = beta_scale * sigmoid(b). q and k are divided by their
// length first, and q is scaled by key_dim^-0.5.
//
// Rows of chunked_from tokens or more are computed in chunks, by matrix products. The order of their sums depends on
// how many tokens the row has in this step.
// Items: rows * v_heads / heads_per_item.
struct DeltaNetArgs {
  char* arena;
  const Row* rows;
  const int64_t* units;  // by row
  int64_t state_offset;  // [v_heads, key_dim, value_dim], float32
  const void* qkv;       // [tokens, qkv_stride]: q [k_heads * key_dim], k the same, v [v_heads * value_dim]
  const void* a;         // [tokens, a_stride], v_heads columns
  const void* b;         // [tokens, b_stride], v_heads columns
  const float* rate;     // [v_heads], negative
  const float* dt_bias;  // [v_heads]
  void* out;             // [tokens, v_heads * value_dim]
  int64_t qkv_stride, a_stride, b_stride;
  int64_t k_heads, v_heads, key_dim, value_dim;
  int64_t heads_per_item;  // divides v_heads / k_heads: they share q and k
  int64_t chunked_from;    // tokens of a row in this step: kDeltaChunked, or none
  float beta_scale;
  float norm_eps;  // inside the square root of q's and k's length
};
inline constexpr int64_t kDeltaChunked = 8;     // tokens of a row in this step
inline constexpr int64_t kDeltaChunk = 16;      // tokens of one matrix product
inline constexpr int64_t kDeltaTileChunk = 32;  // the same, of matrix tiles

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_GATED_DELTA_NET_GATED_DELTA_NET_ARGS_H_
