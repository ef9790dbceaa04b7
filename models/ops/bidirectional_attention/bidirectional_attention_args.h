// The arguments of attention whose queries see every key of their row, for encoders and cross-attention. Keys are
// packed beside the queries, or in blocks of the arena. A bias by distance is optional.
#ifndef BERTH_MODELS_OPS_BIDIRECTIONAL_ATTENTION_BIDIRECTIONAL_ATTENTION_ARGS_H_
#define BERTH_MODELS_OPS_BIDIRECTIONAL_ATTENTION_BIDIRECTIONAL_ATTENTION_ARGS_H_

#include <stdint.h>

#include "models/step/row.h"

namespace berth::ops {

// softmax(scale * q k^T + bias) v. A row's keys are read a span at a time. The order of every sum depends on
// the row's own positions only. Items: tiles_per_item consecutive query tiles, times kv_heads, tile-major.
struct BidirectionalAttentionArgs {
  const Row* rows;                    // of the queries
  const int64_t* tiles;               // [num_tiles, 2]: row, first query of the tile within the row
  int64_t num_tiles, tiles_per_item;  // CUDA ignores them; over blocks, tiles_per_item is 1
  const int64_t* lengths;             // by row: keys

  const Blocks* blocks;  // by row; null: key and value are packed, and row r's keys are the tokens of rows[r]
  const char* arena;
  int64_t key_offset, value_offset;
  int64_t block_tokens;
  const void* key;    // [tokens, key_stride], kv_heads * key_dim columns
  const void* value;  // [tokens, value_stride]
  int64_t key_stride, value_stride;

  const void* query;  // [tokens, query_stride]
  void* out;          // [tokens, q_heads * value_dim]
  int64_t query_stride;
  int64_t q_heads, kv_heads, key_dim, value_dim;
  float scale;
  // [q_heads, 2 * bias_reach + 1] or null: added to the score of key k and query q at column
  // clamp(k - q, -bias_reach, bias_reach) + bias_reach.
  const float* bias;
  int64_t bias_reach;
  float* partials;  // CUDA: SplitKvFloats() where keys are divided; else null
};

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_BIDIRECTIONAL_ATTENTION_BIDIRECTIONAL_ATTENTION_ARGS_H_
