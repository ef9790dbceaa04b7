// The recurrences of the state-space models Mamba-1 and Mamba-2. See models/ops/README.md for the rules of operations.
// Engine thread only.
#ifndef BERTH_MODELS_OPS_MAMBA_MAMBA_H_
#define BERTH_MODELS_OPS_MAMBA_MAMBA_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "models/step/step_batch.h"

namespace berth::ops {

// What Mamba-1 computes from its tokens, all of one type: [tokens, channels], but b and c [tokens, groups, state_dim].
// The channels lie in equal groups (zamba's heads; else one), each with its own b and c.
struct MambaInputs {
  at::Tensor x;
  at::Tensor gate;  // before silu
  at::Tensor dt;    // before bias and softplus
  at::Tensor b, c;
};

// The recurrence of Mamba (Gu and Dao, 2023, section 3), with D and the gate: (C h + D x) silu(gate).
// a: [state_dim, channels], negative; d, dt_bias: [channels], float32. State `state` of the layer's states is
// [state_dim, channels], float32. Returns [tokens, channels].
at::Tensor MambaScan(const MambaInputs& inputs, const at::Tensor& a, const at::Tensor& d, const at::Tensor& dt_bias,
                     int layer, int state, const StepBatch& batch);

struct Mamba2Shape {
  int layer = 0;
  int state = 0;  // which of the layer's states: [heads, state_dim, head_dim], float32
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t state_dim = 0;
  int64_t groups = 0;
  // Limits of the time step for the prompt's tokens. Generated tokens have no limits: the reference kernels and
  // transformers clamp in their prefill alone.
  double dt_min = 0;
  double dt_max = std::numeric_limits<double>::infinity();
};

// The recurrence of Mamba-2 (Dao and Gu, 2024, section 3). xbc: [tokens, heads * head_dim + 2 * groups * state_dim],
// dt: [tokens, heads] before bias and softplus; a (negative), d, dt_bias: [heads], float32.
// Returns y: [tokens, heads * head_dim].
at::Tensor Mamba2Scan(const at::Tensor& xbc, const at::Tensor& dt, const at::Tensor& a, const at::Tensor& d,
                      const at::Tensor& dt_bias, const Mamba2Shape& shape, const StepBatch& batch);

}  // namespace berth::ops

namespace berth::reference {

// These have the contracts above, in ATen operations, token by token, on any device.
at::Tensor MambaScan(const ops::MambaInputs& inputs, const at::Tensor& a, const at::Tensor& d,
                     const at::Tensor& dt_bias, int layer, int state, const StepBatch& batch);
at::Tensor Mamba2Scan(const at::Tensor& xbc, const at::Tensor& dt, const at::Tensor& a, const at::Tensor& d,
                      const at::Tensor& dt_bias, const ops::Mamba2Shape& shape, const StepBatch& batch);

}  // namespace berth::reference

#endif  // BERTH_MODELS_OPS_MAMBA_MAMBA_H_
