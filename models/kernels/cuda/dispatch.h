// Which CUDA kernels the ops use: those of the library that was loaded, or none. Engine thread only.
#ifndef BERTH_MODELS_KERNELS_CUDA_DISPATCH_H_
#define BERTH_MODELS_KERNELS_CUDA_DISPATCH_H_

#include "models/kernels/cuda/kernels.h"

namespace berth::cuda {

// Null: none, and ATen's references run on the GPU.
const Kernels* GetKernels();
// REQUIRES: no step is running; the kernels stay loaded. For models/device.cc, and for tests of emulated ones.
void UseKernels(const Kernels* kernels);

}  // namespace berth::cuda

#endif  // BERTH_MODELS_KERNELS_CUDA_DISPATCH_H_
