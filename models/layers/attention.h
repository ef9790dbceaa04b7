// Self-attention over the cache: fused q, k, v product, optional norm of q and k per head, rotary positions, grouped
// heads, causal within an optional window. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_ATTENTION_H_
#define BERTH_MODELS_LAYERS_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "cache/spec.h"
#include "models/kernels/ops.h"
#include "models/kernels/step_batch.h"
#include "models/layers/linear.h"
#include "models/layers/rms_norm.h"
#include "models/layers/rotary.h"

namespace berth {

struct AttentionConfig {
  int layer = 0;  // of the model
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // 0: none
  double scale = 0;    // of the scores, head_dim^-0.5 mostly
  double softcap = 0;  // 0: none
};

class Attention {
 public:
  struct Weights {
    Linear qkv;                               // [q_heads + 2 * kv_heads] * head_dim outputs: q, k, v side by side
    Linear output;                            // from q_heads * head_dim
    RmsNorm q_norm, k_norm;                   // [head_dim], before the rotation; undefined: none
    std::shared_ptr<RotaryEmbedding> rotary;  // null: no positions
  };

  Attention(const AttentionConfig& config, Weights weights);

  KvSpec cache_spec(DType dtype) const;
  // x: [tokens, hidden] -> [tokens, hidden].
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const;

 private:
  AttentionConfig config_;
  Weights weights_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_ATTENTION_H_
