// Mamba-2's mixer (Dao and Gu, 2024). One input product is split in gate, convolution input and time step. Then come a
// short causal convolution, the recurrence, a gated norm or a plain gate, and the output product. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_MAMBA2_MIXER_H_
#define BERTH_MODELS_LAYERS_MAMBA2_MIXER_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cache/spec.h"
#include "models/checkpoint/weight_loader.h"
#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/ops/mamba/mamba.h"
#include "models/step/step_batch.h"

namespace berth {

struct Mamba2Config {
  int layer = 0;  // of the model
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t state_dim = 0;
  int64_t groups = 0;
  int64_t kernel = 0;  // of the convolution
  bool conv_bias = false;
  bool in_bias = false;
  bool out_bias = false;
  // Limits of the time step, for the prompt's tokens alone, as in the reference.
  double dt_min = 0;
  double dt_max = std::numeric_limits<double>::infinity();

  // Between recurrence and output: norm_groups == 0: y * silu(gate), no norm. Else a norm over inner / norm_groups
  // columns, the gate before it or after it.
  int64_t norm_groups = 1;
  bool gate_first = true;
  double norm_eps = 1e-5;

  // muP constants (falcon_h1), folded into the products: of the input, of the output, and of the input product's five
  // parts (gate, x, B, C, dt).
  double input_scale = 1;
  double output_scale = 1;
  std::array<double, 5> part_scales = {1, 1, 1, 1, 1};

  int64_t inner() const { return heads * head_dim; }
  bool limits_prompts() const { return dt_min > 0 || dt_max < std::numeric_limits<double>::infinity(); }
  int64_t conv_channels() const { return inner() + 2 * groups * state_dim; }
};

class Mamba2Mixer : public Mixer {
 public:
  // Reads `prefix`in_proj, conv1d, A_log, D, dt_bias, norm, out_proj. Errors stick to the loader.
  static std::unique_ptr<Mamba2Mixer> Load(WeightLoader& weights, const std::string& prefix,
                                           const Mamba2Config& config);

  // Two states: the convolution's inputs, in the model's type, and the recurrent state in float32, as transformers
  // keeps them.
  LayerCacheSpec cache_spec(DType dtype) const override;
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const override;

 private:
  Mamba2Config config_;
  Linear in_, out_;
  at::Tensor conv_weight_;      // [kernel, channels], float32
  at::Tensor conv_bias_;        // [channels], float32, or undefined
  at::Tensor a_, d_, dt_bias_;  // [heads], float32
  at::Tensor norm_weight_;      // [inner], float32, or undefined
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_MAMBA2_MIXER_H_
