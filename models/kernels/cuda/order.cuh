// Floats as integers of the same order. Only for .cu files.
#ifndef BERTH_MODELS_KERNELS_CUDA_ORDER_CUH_
#define BERTH_MODELS_KERNELS_CUDA_ORDER_CUH_

#include "models/kernels/cuda/device.cuh"

namespace berth::ops::cuda {

// Larger for larger x, the same for equals. REQUIRES: x is not NaN.
__device__ inline uint32_t OrderedBits(float x) {
  const uint32_t bits = x == 0.0f ? 0u : __float_as_uint(x);  // -0 equals 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
// A NaN for bits below those of -inf.
__device__ inline float FromOrderedBits(uint32_t bits) {
  return __uint_as_float((bits >> 31) != 0 ? bits & 0x7FFFFFFFu : ~bits);
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_KERNELS_CUDA_ORDER_CUH_
