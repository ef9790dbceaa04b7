// Root-mean-square norm with a float32 weight. Thread-compatible.
#ifndef BERTH_MODELS_LAYERS_RMS_NORM_H_
#define BERTH_MODELS_LAYERS_RMS_NORM_H_

#include <ATen/core/Tensor.h>

#include "models/kernels/ops.h"

namespace berth {

struct RmsNorm {
  at::Tensor weight;  // [dim], float32; undefined: no norm
  double eps = 0;

  bool defined() const { return weight.defined(); }
  // x: [tokens, n * dim], each dim columns normed alone. Returns x's shape and type.
  at::Tensor operator()(const at::Tensor& x) const { return ops::RmsNorm(x, weight, eps); }
};

}  // namespace berth

#endif  // BERTH_MODELS_LAYERS_RMS_NORM_H_
