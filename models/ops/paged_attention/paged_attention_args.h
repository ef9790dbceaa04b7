// The arguments of the kernels over keys and values in the arena: preparing and writing them, and causal attention.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_PAGED_ATTENTION_ARGS_H_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_PAGED_ATTENTION_ARGS_H_

#include <stdint.h>

#include "cache/dtype.h"
#include "models/step/row.h"

namespace berth::ops {

// Where a block's unit holds a layer's keys, or its values: [kv_head][token of the block][dim] at `offset`. If they are
// not plain, scales lie at `scale_offset`: [kv_head][token of the block][group], bfloat16.
struct KvPlace {
  int64_t offset, scale_offset;
  int64_t dim;
};

struct KvLayout {
  char* arena;
  const Blocks* blocks;  // by row
  DType storage;         // see KvTensor in cache/spec.h; plain ones have the type that the model computes in
  KvPlace key, value;
  int64_t block_tokens;  // a power of two
  int64_t kv_heads;
};

// Writes the new tokens' keys and values to their places. Items: rows.
struct WriteKvArgs {
  KvLayout kv;
  const Row* rows;
  const void* key;    // [tokens, key_stride]
  const void* value;  // [tokens, value_stride]
  int64_t key_stride, value_stride;
};

// A root-mean-square norm of each head alone.
struct HeadNorm {
  const float* weight;  // [head_dim], or null: none
  float eps;
};

// Prepares the new tokens' heads for attention. Queries and keys are normed and rotated, as in RmsNormArgs and
// RotaryArgs; values may be normed. Then keys and values are written to their places. Items: tiles.
struct PrepareHeadsArgs {
  KvLayout kv;  // of no meaning without keys
  KvLayout recent;
  bool has_recent;  // keys and values go to `recent` too
  const Row* rows;
  const int64_t* tiles;  // [num_tiles, 2]: row, first token of the tile within the row
  void* qkv;             // [tokens, stride]: the heads of queries, keys and values, side by side from column 0
  int64_t stride;
  int64_t q_heads, kv_heads, head_dim;  // kv_heads is 0 where the layer reads another's keys
  HeadNorm q_norm, k_norm, v_norm;
  bool norms_after_rotary;     // of queries and keys
  const int64_t* rotary_rows;  // [tokens]: each one's row of cos and sin
  const float* cos;            // [rows, rotary_dim / 2]
  const float* sin;
  int64_t rotary_dim;  // 0: no rotation
};

inline constexpr int64_t kAttentionSpan = 64;  // positions whose keys and values are read together, at most
// Positions whose scores and values the CPU sums from zero. Then it merges the segments.
inline constexpr int64_t kAttentionSegment = 1024;

// How the CPU's items share the keys of a tile of queries, segment by segment, and where they leave the sums for
// MergeAttention. The sinks of a window are a segment too, and so are the recent tokens.
struct SharedKeys {
  int64_t splits;       // items of a tile and a KV head. 1: each tile is an item's alone, and the rest has no meaning.
  int64_t slots;        // of a tile and a KV head: for the sinks, each segment, and the recent tokens
  int64_t lanes;        // the most queries of a tile, times the heads that share a KV head
  int64_t slot_floats;  // lanes * (2 + value_dim in whole panels)
  float* sums;          // [tiles, kv_heads, slots, slot_floats]
};

// softmax(scale * q k^T + bias) v over the positions that a query sees. The query at p sees positions up to p; with a
// window only (p - window, p], with chunks only [p - p % chunk, p]. It also sees the first `sink_tokens` positions. A
// sink of `sinks` is one more score in the softmax, without a value.
// Items: tiles_per_item consecutive query tiles, times kv_heads, times shared.splits, tile-major.
struct AttentionArgs {
  KvLayout kv;
  const Row* rows;
  const int64_t* tiles;  // [num_tiles, 2]: row, first query of the tile within the row
  int64_t num_tiles;
  int64_t tiles_per_item;  // CUDA: of no meaning
  const void* query;       // [tokens, query_stride]
  void* out;               // [tokens, q_heads * value_dim]
  int64_t query_stride;
  int64_t q_heads;
  KvLayout recent;  // plain, or of no meaning: no recent tokens
  // A query reads its newest `recent_tokens` positions from `recent`, and older ones from kv. 0: all from kv.
  int64_t recent_tokens;
  int64_t window;       // 0: none
  int64_t chunk;        // 0: none
  int64_t sink_tokens;  // with a window; always from kv
  const float* sinks;   // [q_heads] or null
  // [q_heads, 2 * bias_reach + 1] or null: added to the score of key k and query q at column
  // max(k - q, -bias_reach) + bias_reach.
  const float* bias;
  int64_t bias_reach;
  float scale;
  float softcap;      // 0: none; else scores become softcap * tanh(score / softcap), before the bias
  float* partials;    // CUDA: SplitKvFloats() where keys are divided; else null
  char* scratch;      // CUDA: cuda::Kernels::attention_scratch_bytes, and then no partials; else null
  SharedKeys shared;  // CUDA: of no meaning
};

// Merges what items that share tiles have summed, and writes `out`. Items: query tiles times kv_heads, tile-major.
struct MergeAttentionArgs {
  AttentionArgs attention;
};

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_PAGED_ATTENTION_ARGS_H_
