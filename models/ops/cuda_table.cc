// The table that the library exports. BERTH_CUDA_NAME and BERTH_CUDA_ON_HOST are the build's.
#include "models/ops/cuda_entries.h"

namespace berth::ops::cuda {
namespace {

#define BERTH_BOTH(entry) \
  { entry<float>, entry<BFloat16> }

const Kernels kKernels = {
    sizeof(Kernels),
    BERTH_CUDA_NAME,
    BERTH_CUDA_ON_HOST,
    BERTH_BOTH(RmsNorm),
    BERTH_BOTH(Activate),
    BERTH_BOTH(Rotary),
    BERTH_BOTH(WriteKv),
    BERTH_BOTH(Attention),
    BERTH_BOTH(BidirectionalAttention),
    BERTH_BOTH(Conv),
    BERTH_BOTH(MambaScan),
    BERTH_BOTH(Mamba2Scan),
    BERTH_BOTH(DeltaNet),
    BERTH_BOTH(RgLru),
    BERTH_BOTH(Int8MatMul),
    BERTH_BOTH(ExpandInt8),
    BERTH_BOTH(ExpertMatMul),
    Greedy,
    Sample,
};

}  // namespace
}  // namespace berth::ops::cuda

extern "C" __attribute__((visibility("default"))) const berth::ops::cuda::Kernels* BerthCudaKernels() {
  return &berth::ops::cuda::kKernels;
}
