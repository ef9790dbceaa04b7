// Products with weights of 8 bits. Of few rows they are limited by reading the weights: a warp takes several outputs,
// so that each number of x that it reads serves all of them, and adds in float32. Of more rows the weights are expanded
// to the activations' type first, for a product of the library's.
#include "models/kernels/cuda/device.cuh"

namespace berth::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kOutputs = 4;  // of a warp
constexpr int kBytes = 16;   // of a weight's row that a thread loads at once

// Weights that a thread has, of which `left` exist; zeros for the others.
__device__ inline void LoadBytes(const int8_t* p, int64_t left, bool aligned, float* v) {
  if (aligned && left >= kBytes) {
    const uint4 x = *reinterpret_cast<const uint4*>(p);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < kBytes; ++i) v[i] = static_cast<float>(static_cast<int8_t>(words[i / 4] >> (i % 4 * 8)));
    return;
  }
#pragma unroll
  for (int i = 0; i < kBytes; ++i) v[i] = i < left ? static_cast<float>(p[i]) : 0.0f;
}

// kRows: of the code, at least a.rows. A row's sums do not depend on it.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads)
    Int8ProductKernel(const __grid_constant__ Int8ProductArgs a, bool weight_aligned, bool x_aligned) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + WarpIndex()) * kOutputs;
  if (first >= a.weight.outputs) return;
  const int outputs = static_cast<int>(min(static_cast<int64_t>(kOutputs), a.weight.outputs - first));
  const int rows = static_cast<int>(a.rows);
  const T* x = static_cast<const T*>(a.x);
  float sums[kRows][kOutputs] = {};
  for (int64_t i = Lane() * kBytes; i < a.weight.inputs; i += kWarp * kBytes) {
    float w[kOutputs][kBytes];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const int64_t output = first + (o < outputs ? o : 0);
      LoadBytes(a.weight.values + output * a.weight.inputs + i, a.weight.inputs - i, weight_aligned, w[o]);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows) break;
#pragma unroll
      for (int j = 0; j < kBytes; j += kRun<T>) {
        float v[kRun<T>];
        LoadRun(x + row * a.x_stride + i + j, a.weight.inputs - i - j, x_aligned, v);
#pragma unroll
        for (int k = 0; k < kRun<T>; ++k) {
#pragma unroll
          for (int o = 0; o < kOutputs; ++o) sums[row][o] = fmaf(w[o][j + k], v[k], sums[row][o]);
        }
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (row >= rows) break;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const float sum = WarpSum(sums[row][o]);
      if (Lane() != 0 || o >= outputs) continue;
      const float bias = a.bias == nullptr ? 0.0f : Load(static_cast<const T*>(a.bias) + first + o);
      Store(static_cast<T*>(a.out) + row * a.out_stride + first + o, fmaf(sum, a.weight.scales[first + o], bias));
    }
  }
}

// A block for a piece of each output's row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ExpandInt8Kernel(const __grid_constant__ Int8Weight weight, T* out, bool weight_aligned, bool out_aligned) {
  const int64_t output = blockIdx.x;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kBytes;
  if (i >= weight.inputs) return;
  const int64_t at = output * weight.inputs + i;
  const float scale = weight.scales[output];
  float v[kBytes];
  LoadBytes(weight.values + at, weight.inputs - i, weight_aligned, v);
#pragma unroll
  for (int j = 0; j < kBytes; ++j) v[j] *= scale;
#pragma unroll
  for (int j = 0; j < kBytes; j += kRun<T>) StoreRun(out + at + j, weight.inputs - i - j, out_aligned, v + j);
}

template <typename T, int kRows>
int LaunchRows(const Int8ProductArgs& a, const Work& work) {
  return Launch(Int8ProductKernel<T, kRows>, Grid(CeilDiv(a.weight.outputs, kThreads / kWarp * kOutputs)), kThreads, 0,
                work.stream, a, AreAligned<int8_t>(a.weight.values, a.weight.inputs), AreAligned<T>(a.x, a.x_stride));
}

}  // namespace

template <typename T>
int Int8Product(const Int8ProductArgs& a, const Work& work) {
  if (a.rows == 0) return kLaunched;
  if (a.rows == 1) return LaunchRows<T, 1>(a, work);
  if (a.rows <= 4) return LaunchRows<T, 4>(a, work);
  if (a.rows <= 8) return LaunchRows<T, 8>(a, work);
  if (a.rows <= kInt8Rows) return LaunchRows<T, kInt8Rows>(a, work);
  return kNotCovered;
}
BERTH_CUDA_ENTRY(Int8Product, Int8ProductArgs)

template <typename T>
int ExpandInt8(const ExpandInt8Args& a, const Work& work) {
  const Int8Weight& w = a.weight;
  return Launch(ExpandInt8Kernel<T>, Grid(w.outputs, CeilDiv(w.inputs, kThreads * kBytes)), kThreads, 0, work.stream, w,
                static_cast<T*>(a.out), AreAligned<int8_t>(w.values, w.inputs), AreAligned<T>(a.out, w.inputs));
}
BERTH_CUDA_ENTRY(ExpandInt8, ExpandInt8Args)

}  // namespace berth::cuda
