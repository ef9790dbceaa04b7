// A row of logits that a block walks through, and its likeliest token. Only for .cu files.
#ifndef BERTH_MODELS_SAMPLING_LOGITS_CUH_
#define BERTH_MODELS_SAMPLING_LOGITS_CUH_

#include "models/kernels/cuda/device.cuh"
#include "models/sampling/sample_args.h"

namespace berth::ops::cuda {

template <typename T>
struct Logits {
  const T* x;
  int n;
  bool aligned;          // x lies on 16 bytes
  const uint32_t* mask;  // null: every token may be chosen

  // The bits of tokens i, i + 1, ... from the lowest on, as many as lie in one word. REQUIRES: i < n.
  __device__ uint32_t BitsFrom(int i) const { return mask == nullptr ? ~0u : mask[i / 32] >> (i % 32); }
  // -inf if the mask does not allow i.
  __device__ float At(int i) const { return (BitsFrom(i) & 1) != 0 ? Load(x + i) : -INFINITY; }
};

__device__ inline const uint32_t* MaskOf(const MaskArgs& masks, int64_t row) {
  if (masks.words == nullptr || masks.mask_of[row] < 0) return nullptr;
  return masks.words + masks.mask_of[row] * masks.words_per_mask;
}

// visit(i, x[i], whether the mask allows i) for each of the thread's share, in ascending i; the shares are the same for
// every row of a length.
template <int kThreads, typename T, typename Visit>
__device__ inline void ForEachOfAll(const Logits<T>& logits, const Visit& visit) {
  constexpr int kRunSize = kRun<T>;
  static_assert(32 % kRunSize == 0, "a run's bits lie in one word");
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
      const int at = begin + a * kStride;
      const uint32_t bits = at < logits.n ? logits.BitsFrom(at) : 0;
#pragma unroll
      for (int j = 0; j < kRunSize; ++j) {
        if (at + j < logits.n) visit(at + j, v[a][j], (bits >> j & 1) != 0);
      }
    }
  }
}

// Does this with visit(i, x[i]), where x[i] is -inf if the mask does not allow i.
template <int kThreads, typename T, typename Visit>
__device__ inline void ForEach(const Logits<T>& logits, const Visit& visit) {
  ForEachOfAll<kThreads>(logits, [&](int i, float x, bool allowed) { visit(i, allowed ? x : -INFINITY); });
}

// The likeliest so far that is allowed: of equal logits the lower id.
struct Best {
  static constexpr int kBad = 1;     // a NaN or +inf was met
  static constexpr int kFinite = 2;  // a logit above -inf was met

  float logit;
  int id;
  int met;  // among all tokens

  __device__ void Add(const Best& other) {
    if (other.logit > logit || (other.logit == logit && other.id < id)) {
      logit = other.logit;
      id = other.id;
    }
    met |= other.met;
  }
  // Whether there is one that can be chosen.
  __device__ bool IsGood() const { return (met & kBad) == 0 && logit > -INFINITY; }
  // Whether there would be one without the mask.
  __device__ bool IsHidden() const { return met == kFinite && !IsGood(); }
};

__device__ inline Best WarpBest(Best best) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    best.Add({__shfl_xor_sync(kWholeWarp, best.logit, step), __shfl_xor_sync(kWholeWarp, best.id, step),
              __shfl_xor_sync(kWholeWarp, best.met, step)});
  }
  return best;
}

// The best of a row, in all threads of the block, by `room` of a Best for each warp. The next use of the room needs a
// barrier before it. `largest`: of the thread's own share.
template <int kThreads, typename T>
__device__ inline Best BestOf(const Logits<T>& logits, Best* room, float* largest) {
  const Best none = {-INFINITY, logits.n, 0};
  Best best = none;
  ForEachOfAll<kThreads>(logits, [&](int i, float x, bool allowed) {
    const int met = !(x < INFINITY) ? Best::kBad : x > -INFINITY ? Best::kFinite : 0;
    best.Add({allowed ? x : -INFINITY, i, met});
  });
  *largest = best.logit;
  best = WarpBest(best);
  if (Lane() == 0) room[WarpIndex()] = best;
  __syncthreads();
  return WarpBest(Lane() < kThreads / kWarp ? room[Lane()] : none);
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_SAMPLING_LOGITS_CUH_
