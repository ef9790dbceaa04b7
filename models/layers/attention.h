// Self-attention over the cache: fused q, k, v product, norms of q and k, rotary positions, grouped heads, causal
// within an optional window or chunk. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_ATTENTION_H_
#define BERTH_MODELS_LAYERS_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "cache/spec.h"
#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/rotary.h"
#include "models/ops/paged_attention/paged_attention.h"
#include "models/step/step_batch.h"

namespace berth {

struct AttentionConfig {
  int layer = 0;  // of the model
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // a query sees the last `window` positions; 0: all
  int64_t chunk = 0;   // a query sees its own chunk of this many positions; 0: all
  double scale = 0;    // of the scores, head_dim^-0.5 mostly
  double softcap = 0;  // 0: none
  // The layer whose keys and values this one reads; it then writes none and its product gives q alone. -1: its own.
  int kv_source_layer = -1;
  bool norms_after_rotary = false;  // of q and k
  bool output_gate = false;         // the product's last q_heads * head_dim columns gate the output by their sigmoid
  // Llama 4's temperature of layers without positions: q *= 1 + position_scale * log1p(floor((p + 1) /
  // position_floor)). 0: none.
  double position_scale = 0;
  double position_floor = 1;
};

class Attention : public Mixer {
 public:
  struct Weights {
    Linear qkv;                   // q, k, v and the gate side by side, each heads * head_dim outputs
    Linear output;                // from q_heads * head_dim
    Norm q_norm, k_norm, v_norm;  // [head_dim], or over the whole projection; undefined: none
    at::Tensor sinks;             // [q_heads], float32: a score that takes part and is dropped; or undefined
    std::shared_ptr<RotaryEmbedding> rotary;  // null: no positions
  };

  Attention(const AttentionConfig& config, Weights weights);

  LayerCacheSpec cache_spec(DType dtype) const override;
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const override;

 private:
  // What is done to the columns of the fused product before attention.
  ops::NewHeads HeadsOf(const at::Tensor& qkv, const StepBatch& batch) const;
  void ScaleByPosition(at::Tensor& q, const StepBatch& batch) const;

  AttentionConfig config_;
  Weights weights_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_ATTENTION_H_
