// The table that the library exports. BERTH_CUDA_NAME and BERTH_CUDA_ON_HOST are the build's.
#include "models/ops/cuda_kernels.h"

namespace berth::ops::cuda {

#define BERTH_DECLARE(entry, Function, Args) \
  template <typename T>                      \
  int Function(const Args& args, const LaunchParams& launch);
BERTH_OPS(BERTH_DECLARE)
BERTH_CUDA_OPS(BERTH_DECLARE)

namespace {

#define BERTH_ENTRY(entry, Function, Args) .entry = {Function<float>, Function<BFloat16>},

const Kernels kKernels = {
    // clang-format off
    .size_bytes = sizeof(Kernels),
    .name = BERTH_CUDA_NAME,
    .on_host_memory = BERTH_CUDA_ON_HOST,
    BERTH_OPS(BERTH_ENTRY)
    BERTH_CUDA_OPS(BERTH_ENTRY)
    // clang-format on
};

}  // namespace
}  // namespace berth::ops::cuda

extern "C" __attribute__((visibility("default"))) const berth::ops::cuda::Kernels* BerthCudaKernels() {
  return &berth::ops::cuda::kKernels;
}
