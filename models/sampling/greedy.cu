// The greedy choice: a block for each row of logits.
#include "models/sampling/logits.cuh"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads) GreedyKernel(const __grid_constant__ GreedyArgs a, bool aligned) {
  const Logits logits = {a.logits + blockIdx.x * a.stride, static_cast<int>(a.vocab), aligned,
                         MaskOf(a.masks, blockIdx.x)};
  const Best best = BestOf<kThreads>(logits, reinterpret_cast<Best*>(shared_memory));
  if (threadIdx.x != 0) return;
  a.tokens[blockIdx.x] = best.IsGood() ? best.id : best.IsHidden() ? a.masks.no_allowed_token : a.bad_token;
}

}  // namespace

int Greedy(const GreedyArgs& a, const LaunchParams& launch) {
  return Launch(GreedyKernel, Grid(a.rows), kThreads, kThreads / kWarp * sizeof(Best), launch.stream, a,
                AreAligned<float>(a.logits, a.stride));
}

}  // namespace berth::ops::cuda
