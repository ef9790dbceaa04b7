// Rotary position embedding: cosines and sines by position, in float32, computed once and shared by the layers.
// Frequencies as transformers' modeling_rope_utils.py computes them (default, linear, llama3), by the same ATen
// operations in the same order: an angle is position * frequency, so a last bit of a frequency grows with the position.
// Engine thread only.
#ifndef BERTH_MODELS_LAYERS_ROTARY_H_
#define BERTH_MODELS_LAYERS_ROTARY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/kernels/step_batch.h"
#include "models/weights/config_fields.h"

namespace berth {

// What RotaryEmbedding implements; give it to ReadRope, which refuses the rest.
const std::vector<absl::string_view>& RotaryTypes();

class RotaryEmbedding {
 public:
  // REQUIRES: rope.type is one of RotaryTypes(); head_dim is even.
  RotaryEmbedding(const RopeConfig& rope, int64_t head_dim, at::Device device);

  // Rotates the heads of x [tokens, heads * head_dim] in place by the batch's positions.
  void Apply(at::Tensor& x, const StepBatch& batch);

 private:
  // Extends the tables to hold position `position`, doubling.
  void Cover(int64_t position);

  int64_t head_dim_;
  at::Device device_;
  at::Tensor frequencies_;  // [rotary_dim / 2], on the CPU
  at::Tensor cos_;          // [positions, rotary_dim / 2]
  at::Tensor sin_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_ROTARY_H_
