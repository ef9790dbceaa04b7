// The short convolution of lfm2 (source: transformers' models/lfm2): the input product gives B, C and x; the layer's
// output is C * conv(B * x), through the output product. Engine thread only.
#ifndef BERTH_MODELS_LAYERS_SHORT_CONV_H_
#define BERTH_MODELS_LAYERS_SHORT_CONV_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cache/spec.h"
#include "models/checkpoint/weight_loader.h"
#include "models/layers/block.h"
#include "models/layers/linear.h"
#include "models/step/step_batch.h"

namespace berth {

struct ShortConvConfig {
  int layer = 0;  // of the model
  int64_t hidden = 0;
  int64_t kernel = 0;
  bool bias = false;  // of the convolution and of both products
};

class ShortConv : public Mixer {
 public:
  // Reads `prefix`in_proj, conv, out_proj. Errors stick to the loader.
  static std::unique_ptr<ShortConv> Load(WeightLoader& weights, const std::string& prefix,
                                         const ShortConvConfig& config);

  // One state: the convolution's inputs, in the model's type.
  LayerCacheSpec cache_spec(DType dtype) const override;
  at::Tensor operator()(const at::Tensor& x, const StepBatch& batch) const override;

 private:
  ShortConvConfig config_;
  Linear in_, out_;
  at::Tensor conv_weight_;  // [kernel, hidden], float32
  at::Tensor conv_bias_;    // [hidden], float32, or undefined
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_SHORT_CONV_H_
