// Causal attention over the blocks of the arena, and writing keys and values there. See models/ops/README.md for the
// rules of operations. Engine thread only.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_PAGED_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

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
