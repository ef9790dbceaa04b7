// The gated delta net (Yang et al., 2024). See models/ops/README.md for the rules of operations. Engine thread only.
#ifndef BERTH_MODELS_OPS_GATED_DELTA_NET_GATED_DELTA_NET_H_
#define BERTH_MODELS_OPS_GATED_DELTA_NET_GATED_DELTA_NET_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/step/step_batch.h"

namespace berth::ops {

struct DeltaNetShape {
  int layer = 0;
  int state = 0;        // which of the layer's states: [v_heads, key_dim, value_dim], float32
  int64_t k_heads = 0;  // of queries and keys; divides v_heads, and serves v_heads / k_heads neighbours
  int64_t v_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  double beta_scale = 1;   // 2 lets the state's eigenvalues be negative
  double norm_eps = 1e-6;  // of q's and k's length: x / sqrt(sum x^2 + eps)
};

// The gated delta rule (Yang et al., 2024), as DeltaNetArgs writes it.
// - qkv: [tokens, 2 * k_heads * key_dim + v_heads * value_dim]: q, k, v side by side, before the norm of q and k.
// - a: [tokens, v_heads], before bias and softplus; b: the same, before sigmoid.
// - rate (negative), dt_bias: [v_heads], float32.
// Returns [tokens, v_heads * value_dim].
at::Tensor GatedDeltaNet(const at::Tensor& qkv, const at::Tensor& a, const at::Tensor& b, const at::Tensor& rate,
                         const at::Tensor& dt_bias, const DeltaNetShape& shape, const StepBatch& batch);

}  // namespace berth::ops

namespace berth::reference {

// This has the contract above, in ATen operations, token by token, on any device.
at::Tensor GatedDeltaNet(const at::Tensor& qkv, const at::Tensor& a, const at::Tensor& b, const at::Tensor& rate,
                         const at::Tensor& dt_bias, const ops::DeltaNetShape& shape, const StepBatch& batch);

}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_GATED_DELTA_NET_GATED_DELTA_NET_H_
