// Attention whose queries see every key: inside an encoder, which needs no cache, and over the cross blocks of an
// encoder's output. See models/ops/README.md for the rules of operations. Engine thread only.
#ifndef BERTH_MODELS_OPS_BIDIRECTIONAL_ATTENTION_BIDIRECTIONAL_ATTENTION_H_
#define BERTH_MODELS_OPS_BIDIRECTIONAL_ATTENTION_BIDIRECTIONAL_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/step/step_batch.h"

namespace berth::ops {

// How a layer attends. Without a cache, keys and values have as many heads as queries, and the same dimension.
struct BidirectionalAttentionShape {
  int layer = 0;  // of the decoder: finds its place in the cache; of no meaning in the encoder
  int64_t q_heads = 0;
  int64_t head_dim = 0;
  double scale = 1;
  // [q_heads, 2 * reach + 1], float32, or undefined. Column clamp(k - q, -reach, reach) + reach is added to the score
  // of the key at position k and the query at q.
  at::Tensor distance_bias;
};

// query, key, value: [encoder tokens, q_heads * head_dim] of batch.encoder() -> the query's shape: every token of a row
// sees all tokens of that row.
at::Tensor EncoderAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const BidirectionalAttentionShape& shape, const StepBatch& batch);

// Writes keys and values of the encoder's output, [encoder tokens, kv_heads * dim], to the layer's cross blocks of the
// rows whose encoder runs.
void WriteCross(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch);

// query: [tokens, q_heads * head_dim] -> [tokens, q_heads * value_dim]: each row's tokens see all that its encoder
// read.
at::Tensor CrossAttention(const at::Tensor& query, const BidirectionalAttentionShape& shape, const StepBatch& batch);

}  // namespace berth::ops

namespace berth::reference {

// These have the contracts above, in ATen operations, on any device.
at::Tensor EncoderAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const ops::BidirectionalAttentionShape& shape, const StepBatch& batch);
void WriteCross(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch);
at::Tensor CrossAttention(const at::Tensor& query, const ops::BidirectionalAttentionShape& shape,
                          const StepBatch& batch);

}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_BIDIRECTIONAL_ATTENTION_BIDIRECTIONAL_ATTENTION_H_
