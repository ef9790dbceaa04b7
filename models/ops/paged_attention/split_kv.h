// How CUDA's attention kernels divide the keys of a step's rows among blocks. Engine thread only.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_SPLIT_KV_H_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_SPLIT_KV_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "models/ops/backend.h"
#include "models/ops/cuda_kernels.h"
#include "models/ops/parallel.h"

namespace berth::ops {

// Divides the keys of the step's leading rows, which decode: they make too few blocks to fill a GPU otherwise. Divides
// none if the scratch would be too large; such a step has enough blocks.
inline SplitKv SplitOf(const LeadingRows& leading, const KeySplits& keys, int64_t q_heads, int64_t value_dim) {
  constexpr int64_t kMostScratchBytes = int64_t{512} << 20;
  const SplitKv split = {.num_tiles = leading.rows,
                         .tile_tokens = leading.longest,
                         .num_splits = keys.most,
                         .num_partials = keys.partials};
  const int64_t floats = SplitKvFloats(split, q_heads, value_dim);
  const bool is_worth_it = split.num_splits > 1 && floats * static_cast<int64_t>(sizeof(float)) <= kMostScratchBytes;
  return is_worth_it ? split : SplitKv{};
}

// Enqueues attention with the memory for the parts' results. False: there is no code for these sizes.
template <typename Args>
bool RunSplitOnCuda(cuda::Kernel<Args> (cuda::Kernels::*entry)[2], Args args, int64_t value_dim,
                    const at::Tensor& query, const cuda::LaunchParams& launch, const Execution& execution) {
  at::Tensor partials;  // ATen does not reuse its memory until the stream has passed this point
  if (launch.split.num_splits > 0) {
    const int64_t floats = SplitKvFloats(launch.split, args.q_heads, value_dim);
    partials = at::empty({floats}, query.options().dtype(at::kFloat));
    args.partials = partials.data_ptr<float>();
  }
  return IsLaunched(RunOnCuda(entry, TypeOf(query), args, launch, execution));
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_SPLIT_KV_H_
