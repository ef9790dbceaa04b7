// Which CUDA kernels the ops use, and what records graphs of them: those of the libraries that were loaded, or none.
// Engine thread only.
#ifndef BERTH_MODELS_OPS_CUDA_DISPATCH_H_
#define BERTH_MODELS_OPS_CUDA_DISPATCH_H_

#include "models/kernels/cuda/graph.h"
#include "models/ops/cuda_kernels.h"

namespace berth::ops::cuda {

// Null: none, and ATen's references run on the GPU.
const Kernels* GetKernels();
// REQUIRES: no step is running; the kernels stay loaded. For models/runner/device.cc, and for tests of emulated ones.
void UseKernels(const Kernels* kernels);

// Null: none.
GraphRecorder* GetGraphRecorder();
void UseGraphRecorder(GraphRecorder* recorder);

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_CUDA_DISPATCH_H_
