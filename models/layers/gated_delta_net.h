// The mixer of the gated delta net (Yang et al., 2024). It consists of one input product, a short causal convolution
// over q, k and v, the recurrence, a norm per head with a gate, and the output product. Checkpoints cut the input
// product differently; loading joins the pieces to the same matrix. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_GATED_DELTA_NET_H_
#define BERTH_MODELS_LAYERS_GATED_DELTA_NET_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cache/spec.h"
#include "models/checkpoint/weight_loader.h"
#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/ops/gated_delta_net/gated_delta_net.h"
#include "models/step/step_batch.h"

namespace berth {

// The names and the order of the checkpoint's tensors, below the mixer's prefix.
enum class DeltaNetTensors {
  kInterleaved,  // qwen3_next: in_proj_qkvz and in_proj_ba, whose rows go key head by key head
  kSplit,        // qwen3_5: in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
  kSeparate,     // olmo_hybrid: q_proj to b_proj, a convolution each for q, k and v, g_proj for the gate
};

struct GatedDeltaNetConfig {
  int layer = 0;  // of the model
  int64_t hidden = 0;
  int64_t k_heads = 0;
  int64_t v_heads = 0;  // a multiple of k_heads
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t kernel = 0;     // of the convolution
  double beta_scale = 1;  // 2 lets the state's eigenvalues be negative
  double norm_eps = 1e-6;
  DeltaNetTensors tensors = DeltaNetTensors::kSplit;

  int64_t keys() const { return k_heads * key_dim; }
  int64_t values() const { return v_heads * value_dim; }
  int64_t conv_channels() const { return 2 * keys() + values(); }
};

class GatedDeltaNet : public Mixer {
 public:
  // Reads the tensors under `prefix`. Errors stick to the loader.
  static std::unique_ptr<GatedDeltaNet> Load(WeightLoader& weights, const std::string& prefix,
                                             const GatedDeltaNetConfig& config);

  // Two states: the convolution's inputs, in the model's type, and the recurrent state in float32.
  LayerCacheSpec cache_spec(DType dtype) const override;
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const override;

 private:
  GatedDeltaNetConfig config_;
  Linear in_;                  // q, k, v, gate, b, a side by side
  Linear out_;                 // from v_heads * value_dim
  at::Tensor conv_weight_;     // [kernel, channels], float32
  at::Tensor rate_, dt_bias_;  // [v_heads], float32
  at::Tensor norm_weight_;     // [v_heads * value_dim], float32: the same for every head
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_GATED_DELTA_NET_H_
