// The greedy choice: a block for each row of logits.
#include "models/kernels/cuda/device.cuh"

namespace berth::cuda {
namespace {

constexpr int kThreads = 512;

// The likeliest so far: of equal logits the lower id.
struct Best {
  float logit;
  int id;
  int bad;  // a NaN or +inf was met

  __device__ void Add(const Best& other) {
    if (other.logit > logit || (other.logit == logit && other.id < id)) {
      logit = other.logit;
      id = other.id;
    }
    bad |= other.bad;
  }
};

__device__ inline Best WarpBest(Best best) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    best.Add({__shfl_xor_sync(kWholeWarp, best.logit, step), __shfl_xor_sync(kWholeWarp, best.id, step),
              __shfl_xor_sync(kWholeWarp, best.bad, step)});
  }
  return best;
}

__global__ void __launch_bounds__(kThreads) GreedyKernel(const __grid_constant__ GreedyArgs a, bool aligned) {
  constexpr int kRunSize = kRun<float>;
  const float* logits = a.logits + blockIdx.x * a.stride;
  const Best none = {-INFINITY, static_cast<int>(a.vocab), 0};
  Best best = none;
  for (int64_t i = threadIdx.x * kRunSize; i < a.vocab; i += kThreads * kRunSize) {
    float v[kRunSize];
    LoadRun(logits + i, a.vocab - i, aligned, v);
#pragma unroll
    for (int j = 0; j < kRunSize; ++j) {
      if (i + j < a.vocab) best.Add({v[j], static_cast<int>(i) + j, v[j] < INFINITY ? 0 : 1});
    }
  }
  best = WarpBest(best);
  Best* of_warps = reinterpret_cast<Best*>(shared_memory);
  if (Lane() == 0) of_warps[WarpIndex()] = best;
  __syncthreads();
  if (WarpIndex() != 0) return;
  best = WarpBest(Lane() < kThreads / kWarp ? of_warps[Lane()] : none);
  if (Lane() == 0) a.tokens[blockIdx.x] = best.bad != 0 || best.logit == -INFINITY ? a.bad_token : best.id;
}

}  // namespace

int Greedy(const GreedyArgs& a, void* stream) {
  return Launch(GreedyKernel, Grid(a.rows), kThreads, kThreads / kWarp * sizeof(Best), stream, a,
                AreAligned<float>(a.logits, a.stride));
}

}  // namespace berth::cuda
