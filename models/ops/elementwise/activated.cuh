// Activations on a GPU. Only for .cu files.
#ifndef BERTH_MODELS_OPS_ELEMENTWISE_ACTIVATED_CUH_
#define BERTH_MODELS_OPS_ELEMENTWISE_ACTIVATED_CUH_

#include "models/kernels/cuda/device.cuh"
#include "models/ops/elementwise/elementwise_args.h"

namespace berth::ops::cuda {

__device__ inline float Positive(float x) { return x > 0.0f ? x : 0.0f * x; }  // a NaN stays one

// activation(x) * up.
__device__ inline float Activated(Activation activation, float x, float up, const SwigluConstants& swiglu) {
  switch (activation) {
    case kSilu:
      return Silu(x) * up;
    case kGeluTanh:  // 0.5 x (1 + tanh(u)) == x sigmoid(2 u)
      return x * Sigmoid(2.0f * 0.7978845608028654f * (x + 0.044715f * x * x * x)) * up;
    case kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)) * up;
    case kSigmoid:
      return Sigmoid(x) * up;
    case kRelu:
      return Positive(x) * up;
    case kReluSquared:
      return Positive(x) * Positive(x) * up;
    case kClampedSwiglu: {
      const float gate = x > swiglu.limit ? swiglu.limit : x;
      const float limited = up > swiglu.limit ? swiglu.limit : (up < -swiglu.limit ? -swiglu.limit : up);
      return (limited + 1.0f) * gate * Sigmoid(swiglu.alpha * gate);
    }
  }
  return 0;
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_ELEMENTWISE_ACTIVATED_CUH_
