// Attention in bfloat16 by FlashInfer's kernels, for a build that has them.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_FLASHINFER_H_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_FLASHINFER_H_

#include <stdint.h>

#include "models/kernels/cuda/launch.h"
#include "models/ops/paged_attention/paged_attention_args.h"

namespace berth::ops::cuda {

// As the entries of cuda_kernels.h. Without scratch, Attention<BFloat16> computes it.
int FlashInferAttention(const AttentionArgs& args, const LaunchParams& launch);
// The bytes of AttentionArgs::scratch. 0: FlashInfer does not cover it, and there must be no scratch.
int64_t FlashInferScratchBytes(const AttentionArgs& args, const LaunchParams& launch);

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_FLASHINFER_H_
