// The greedy choice: a block for each row of logits.
#include "models/sampling/logits.cuh"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 512;

template <typename T>
__global__ void __launch_bounds__(kThreads) GreedyKernel(const __grid_constant__ GreedyArgs a, bool aligned) {
  const Logits<T> logits = {static_cast<const T*>(a.logits) + blockIdx.x * a.stride, static_cast<int>(a.vocab), aligned,
                            MaskOf(a.masks, blockIdx.x)};
  float largest;
  const Best best = BestOf<kThreads>(logits, reinterpret_cast<Best*>(shared_memory), &largest);
  if (threadIdx.x != 0) return;
  a.tokens[blockIdx.x] = best.IsGood() ? best.id : best.IsHidden() ? a.masks.no_allowed_token : a.bad_token;
}

}  // namespace

template <typename T>
int Greedy(const GreedyArgs& a, const LaunchParams& launch) {
  return Launch(GreedyKernel<T>, Grid(a.rows), kThreads, kThreads / kWarp * sizeof(Best), launch.stream, a,
                AreAligned<T>(a.logits, a.stride));
}
BERTH_CUDA_ENTRY(Greedy, GreedyArgs)

}  // namespace berth::ops::cuda
