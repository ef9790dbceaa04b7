// Causal attention over the blocks of the arena, and writing keys and values there. See models/ops/README.md for the
// rules of operations. Engine thread only.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/ops/elementwise/elementwise.h"
#include "models/step/step_batch.h"

namespace berth::ops {

// How one layer attends.
struct AttentionShape {
  int layer = 0;  // of the model: finds its place in the cache
  int64_t q_heads = 0;
  int64_t head_dim = 0;
  double scale = 1;
  double softcap = 0;  // 0: none
  at::Tensor sinks;    // [q_heads], float32, or undefined: one more score per head in the softmax, without a value
  // [q_heads, 2 * reach + 1], float32, or undefined. Column max(k - q, -reach) + reach is added to the score of the key
  // at position k and the query at q.
  at::Tensor distance_bias;
};

struct HeadNormWeights {
  at::Tensor weight;  // [head_dim], or of all heads side by side, which are then normed together; or undefined
  double eps = 0;
};

// The new tokens' heads, and what is done to them before attention.
struct NewHeads {
  at::Tensor qkv;  // [tokens, columns]: q, k and v side by side from column 0, in place
  int64_t q_heads = 0;
  int64_t kv_heads = 0;  // 0: neither keys nor values, and nothing is written
  int64_t head_dim = 0;
  HeadNormWeights q_norm, k_norm, v_norm;
  bool norms_after_rotary = false;  // of queries and keys
  Rotation rotation;                // undefined: none
};

// Norms and rotates the heads, and writes keys and values to the layer's place in the cache. What it leaves of k and v
// in `qkv` is not defined.
void PrepareHeads(const NewHeads& heads, int layer, const StepBatch& batch);
// Writes the new tokens' keys and values [tokens, kv_heads * dim] to the cache.
void WriteKv(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch);
// query: [tokens, q_heads * head_dim] -> [tokens, q_heads * value_dim]: causal attention of each row over its own
// blocks, within the group's window or chunk. The new tokens' keys must be written.
at::Tensor Attention(const at::Tensor& query, const AttentionShape& shape, const StepBatch& batch);

}  // namespace berth::ops

namespace berth::reference {

// These have the contracts above, in ATen operations, on any device.
void WriteKv(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch);
at::Tensor Attention(const at::Tensor& query, const ops::AttentionShape& shape, const StepBatch& batch);
}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_
