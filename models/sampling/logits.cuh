// A row of logits that a block walks through, and its likeliest token. Only for .cu files.
#ifndef BERTH_MODELS_SAMPLING_LOGITS_CUH_
#define BERTH_MODELS_SAMPLING_LOGITS_CUH_

#include "models/kernels/cuda/device.cuh"
#include "models/sampling/sample_args.h"

namespace berth::ops::cuda {

struct Logits {
  const float* x;
  int n;
  bool aligned;  // x lies on 16 bytes
};

// visit(i, x[i]) for each of the thread's share, in ascending i; the shares are the same for every row of a length.
template <int kThreads, typename Visit>
__device__ inline void ForEach(const Logits& logits, const Visit& visit) {
  constexpr int kRunSize = kRun<float>;
  constexpr int kStride = kThreads * kRunSize;
  constexpr int kAhead = 2;  // runs that are on their way at once
  for (int begin = static_cast<int>(threadIdx.x) * kRunSize; begin < logits.n; begin += kAhead * kStride) {
    float v[kAhead][kRunSize];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int at = begin + a * kStride;
      LoadRun(logits.x + at, logits.n - at, logits.aligned, v[a]);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
#pragma unroll
      for (int j = 0; j < kRunSize; ++j) {
        const int i = begin + a * kStride + j;
        if (i < logits.n) visit(i, v[a][j]);
      }
    }
  }
}

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
  // Whether there is one that can be chosen.
  __device__ bool IsGood() const { return bad == 0 && logit > -INFINITY; }
};

__device__ inline Best WarpBest(Best best) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    best.Add({__shfl_xor_sync(kWholeWarp, best.logit, step), __shfl_xor_sync(kWholeWarp, best.id, step),
              __shfl_xor_sync(kWholeWarp, best.bad, step)});
  }
  return best;
}

// The best of a row, in all threads of the block, by `room` of a Best for each warp. The next use of the room needs a
// barrier before it.
template <int kThreads>
__device__ inline Best BestOf(const Logits& logits, Best* room) {
  const Best none = {-INFINITY, logits.n, 0};
  Best best = none;
  ForEach<kThreads>(logits, [&](int i, float x) { best.Add({x, i, x < INFINITY ? 0 : 1}); });
  best = WarpBest(best);
  if (Lane() == 0) room[WarpIndex()] = best;
  __syncthreads();
  return WarpBest(Lane() < kThreads / kWarp ? room[Lane()] : none);
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_SAMPLING_LOGITS_CUH_
