// The attentions of encoder-decoder models: within the encoder, over its output, and T5's causal one with a bias by
// distance. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_ENCODER_ATTENTION_H_
#define BERTH_MODELS_LAYERS_ENCODER_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "cache/spec.h"
#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/ops/bidirectional_attention/bidirectional_attention.h"
#include "models/step/step_batch.h"

namespace berth {

// Every token of an encoder's row sees all of that row. Nothing is cached.
struct EncoderSelfAttention {
  ops::BidirectionalAttentionShape shape;
  Linear qkv;  // q, k, v side by side, each q_heads * head_dim outputs
  Linear output;

  // x: [encoder tokens, hidden] -> the same.
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const;
};

// The decoder's own causal attention with shape.distance_bias.
class BiasedAttention : public Mixer {
 public:
  BiasedAttention(ops::BidirectionalAttentionShape shape, Linear qkv, Linear output)
      : shape_(std::move(shape)), qkv_(std::move(qkv)), output_(std::move(output)) {}

  LayerCacheSpec cache_spec(DType dtype) const override;
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const override;

 private:
  ops::BidirectionalAttentionShape shape_;
  Linear qkv_, output_;
};

// The decoder's attention to what its encoder read.
class CrossAttention : public Mixer {
 public:
  struct Weights {
    Linear q, kv;  // k and v side by side
    Linear output;
  };
  CrossAttention(ops::BidirectionalAttentionShape shape, Weights weights)
      : shape_(std::move(shape)), weights_(std::move(weights)) {}

  LayerCacheSpec cache_spec(DType dtype) const override;
  // Writes the keys and values of the encoder's output, [encoder tokens, hidden], to the cache.
  void Remember(const at::Tensor& encoded, const StepBatch& batch) const;
  // REQUIRES: Remember has run for every row's encoder, in this step or an earlier one.
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const override;

 private:
  ops::BidirectionalAttentionShape shape_;
  Weights weights_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_ENCODER_ATTENTION_H_
