// The table that the library exports. BERTH_CUDA_NAME and BERTH_CUDA_ON_HOST are the build's, and BERTH_FLASHINFER,
// which takes FlashInfer's attention.
#include "models/ops/cuda_kernels.h"
#if defined(BERTH_FLASHINFER)
#include "models/ops/paged_attention/flashinfer.h"
#endif

namespace berth::ops::cuda {

#define BERTH_DECLARE(entry, Function, Args) \
  template <typename T>                      \
  int Function(const Args& args, const LaunchParams& launch);
BERTH_OPS(BERTH_DECLARE)
BERTH_CUDA_OPS(BERTH_DECLARE)

namespace {

#define BERTH_ENTRY(entry, Function, Args) .entry = {Function<float>, Function<BFloat16>},

constexpr Kernels kOwnKernels = {
    // clang-format off
    .size_bytes = sizeof(Kernels),
    .name = BERTH_CUDA_NAME,
    .on_host_memory = BERTH_CUDA_ON_HOST,
    BERTH_OPS(BERTH_ENTRY)
    BERTH_CUDA_OPS(BERTH_ENTRY)
    .attention_scratch_bytes = nullptr,
    // clang-format on
};

#if defined(BERTH_FLASHINFER)
constexpr Kernels WithFlashInfer(Kernels kernels) {
  kernels.attention[TypeIndex(DType::kBFloat16)] = FlashInferAttention;
  kernels.attention_scratch_bytes = FlashInferScratchBytes;
  return kernels;
}
const Kernels kKernels = WithFlashInfer(kOwnKernels);
#else
const Kernels kKernels = kOwnKernels;
#endif

}  // namespace
}  // namespace berth::ops::cuda

extern "C" __attribute__((visibility("default"))) const berth::ops::cuda::Kernels* BerthCudaKernels() {
  return &berth::ops::cuda::kKernels;
}
