// How a warp holds part of a matrix [depth, width] that is summed over its depth, and whose columns are separate
// recurrences. It holds eight columns, and kSlices neighbouring threads share each. Slice s has rows 16 j + 4 s to 16 j
// + 4 s + 3 for all j. So a warp reads whole sectors of the state, and it reads vectors along the depth in runs. Only
// for .cu files.
#ifndef BERTH_MODELS_KERNELS_CUDA_COLUMNS_CUH_
#define BERTH_MODELS_KERNELS_CUDA_COLUMNS_CUH_

#include "models/kernels/cuda/device.cuh"

namespace berth::ops::cuda {

inline constexpr int kSlices = 4;
inline constexpr int kDepthStep = 4 * kSlices;
inline constexpr int kColumnThreads = 128;
inline constexpr int kBlockColumns = kColumnThreads / kSlices;

// The column of this thread among the block's, and its slice.
__device__ inline int ColumnOfThread() { return static_cast<int>(threadIdx.x) / kSlices; }
__device__ inline int SliceOfThread() { return static_cast<int>(threadIdx.x) % kSlices; }

// Over the threads of a column; all of them get the sum.
__device__ inline float SliceSum(float value) {
  value += __shfl_xor_sync(kWholeWarp, value, 1);
  return value + __shfl_xor_sync(kWholeWarp, value, 2);
}

// This thread's part of a column, kSteps * 4 numbers: what is below `depth` of them.
template <int kSteps>
struct Column {
  float numbers[kSteps][4];

  // state: [depth, width], at the column; null: zeros.
  __device__ void Read(const float* state, int depth, int64_t width) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int n = j * kDepthStep + SliceOfThread() * 4 + u;
        numbers[j][u] = state != nullptr && n < depth ? state[n * width] : 0.0f;
      }
    }
  }
  __device__ void Write(float* state, int depth, int64_t width) const {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int n = j * kDepthStep + SliceOfThread() * 4 + u;
        if (n < depth) state[n * width] = numbers[j][u];
      }
    }
  }
};

// Calls visit(j, n) for this thread's runs: rows n to n + 3 are numbers[j].
template <int kSteps, typename Visit>
__device__ inline void ForRuns(int depth, const Visit& visit) {
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    if (j * kDepthStep >= depth) break;
    visit(j, j * kDepthStep + SliceOfThread() * 4);
  }
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_KERNELS_CUDA_COLUMNS_CUH_
