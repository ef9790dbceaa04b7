// The recurrent block of Griffin (De et al., 2024, section 2.1). One input product gives two branches: gelu on the one,
// a short causal convolution and the RG-LRU on the other. The branches are multiplied, and the output product follows.
// Engine thread only.
#ifndef BERTH_MODELS_LAYERS_RG_LRU_H_
#define BERTH_MODELS_LAYERS_RG_LRU_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/spec.h"
#include "models/checkpoint/weight_loader.h"
#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/ops/matmul/matmul.h"
#include "models/ops/rg_lru/rg_lru.h"
#include "models/step/step_batch.h"

namespace berth {

struct RgLruConfig {
  int layer = 0;  // of the model
  int64_t hidden = 0;
  int64_t width = 0;   // of the recurrence
  int64_t blocks = 0;  // of the gates' block-diagonal matrices; divides width
  int64_t kernel = 0;  // of the convolution
};

class RgLruMixer : public Mixer {
 public:
  // Reads `prefix`linear_x, linear_y, conv_1d, rg_lru, linear_out. Errors stick to the loader.
  static std::unique_ptr<RgLruMixer> Load(WeightLoader& weights, const std::string& prefix, const RgLruConfig& config);

  // Two states: the convolution's inputs, in the model's type, and the recurrent state in float32.
  LayerCacheSpec cache_spec(DType dtype) const override;
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const override;

 private:
  RgLruConfig config_;
  Linear in_;               // the recurrence's branch and the gelu's, side by side
  Linear out_;              // from width
  at::Tensor conv_weight_;  // [kernel, width], float32
  at::Tensor conv_bias_;    // [width], float32
  std::vector<ops::PackedMatrix>
      gates_;  // by block: [2 * block_width, block_width], the input's, then the recurrence's
  ops::RgLruWeights recurrence_;
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_RG_LRU_H_
