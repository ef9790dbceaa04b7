// The operations that layers are written in, beyond ATen's own. Free functions: on CPU tensors the kernels of cpu/, on
// CUDA's those of cuda/ where they are loaded, elsewhere the ATen reference (namespace reference), which runs on any
// device and is the tests' oracle.
//
// Activations are [tokens, columns], float32 or bfloat16, rows possibly strided (slices of a fused product). Weights of
// norms, convolutions and state kernels are float32. Sums are float32. Thread-compatible; engine thread only.
#ifndef BERTH_MODELS_KERNELS_OPS_H_
#define BERTH_MODELS_KERNELS_OPS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/ops/cpu_kernels.h"
#include "models/step/step_batch.h"

namespace berth::ops {

// x: [tokens, groups * dim], weight: [dim] shared by the groups. Returns x's shape and type.
// x / sqrt(mean(x^2) + eps) * weight, per group of `dim` columns.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);
// The same of x rounded to `type`, which the result has.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType type);
// The same, in place on a slice of a fused product.
void RmsNormInPlace(at::Tensor& x, const at::Tensor& weight, double eps);

// Mamba-2's output norm. x, gate: [tokens, dim], weight: [dim]; the mean is over dim / groups columns.
// gate_first: norm(x * silu(gate)) * weight, else norm(x) * weight * silu(gate).
at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        int64_t groups, bool gate_first);

// stream + scale * x, both [tokens, dim]; the stream has x's type or is float32, and so is the result.
at::Tensor AddToStream(const at::Tensor& stream, const at::Tensor& x, double scale = 1);

// gate_up: [tokens, 2 * dim] -> [tokens, dim]: activation(left half) * right half.
at::Tensor GatedActivation(const at::Tensor& gate_up, Activation activation);
// x: [tokens, columns] -> activation(x). REQUIRES: an activation of one argument. An element's bits depend on it and
// its column alone; ATen's functions give the last elements of a tensor other code than the rest.
at::Tensor Activate(const at::Tensor& x, Activation activation);

// Rotates heads of x [tokens, heads * head_dim] in place. cos, sin: [rows, rotary_dim / 2], float32; rows: [tokens],
// int64, each token's row of them.
void Rotary(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& rows, int64_t head_dim);

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

// The same contracts in ATen operations, on any device.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        int64_t groups, bool gate_first);
at::Tensor GatedActivation(const at::Tensor& gate_up, ops::Activation activation);
at::Tensor Activate(const at::Tensor& x, ops::Activation activation);
void Rotary(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& rows, int64_t head_dim);
void WriteKv(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch);
at::Tensor Attention(const at::Tensor& query, const ops::AttentionShape& shape, const StepBatch& batch);
}  // namespace berth::reference

#endif  // BERTH_MODELS_KERNELS_OPS_H_
