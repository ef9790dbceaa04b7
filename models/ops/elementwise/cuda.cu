// Norms, activations and rotations: limited by memory, so each thread takes runs of 16 bytes.
#include "models/ops/elementwise/activated.cuh"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 256;
// A warp computes groups of at most this many numbers, a block larger ones.
constexpr int64_t kWarpNorm = 1024;
constexpr int kWarpNormThreads = 128;

template <typename T>
inline constexpr bool kIsFloat = sizeof(T) == sizeof(float);

// A run of a stream of T or float32, from its number `at` on.
template <typename T>
__device__ inline void LoadStream(const void* stream, bool is_float, int64_t at, int64_t left, bool aligned, float* v) {
  if (kIsFloat<T> || !is_float) {
    LoadRun(static_cast<const T*>(stream) + at, left, aligned, v);
  } else {
#pragma unroll
    for (int i = 0; i < kRun<T>; i += 4) LoadFew(static_cast<const float*>(stream) + at + i, left - i, aligned, v + i);
  }
}
template <typename T>
__device__ inline void StoreStream(void* stream, bool is_float, int64_t at, int64_t left, bool aligned,
                                   const float* v) {
  if (kIsFloat<T> || !is_float) {
    StoreRun(static_cast<T*>(stream) + at, left, aligned, v);
  } else {
#pragma unroll
    for (int i = 0; i < kRun<T>; i += 4) StoreRun(static_cast<float*>(stream) + at + i, left - i, aligned, v + i);
  }
}

// The input of a norm's group: x, or the sum of x and the addend. A thread reads what it wrote itself of the sum.
template <typename T, bool kAdds>
struct NormInput {
  const RmsNormArgs& a;
  int64_t x, addend, sum;  // the group's first number in each
  bool aligned;

  // The run from number i of the group on, rounded to T.
  __device__ void Read(int64_t i, float* v) const {
    LoadStream<T>(kAdds ? a.sum : a.x, a.x_is_float, (kAdds ? sum : x) + i, a.dim - i, aligned, v);
    if (a.x_is_float) Round(v);
  }
  // The first reading of a run, which computes the sum.
  __device__ void ReadFirst(int64_t i, float* v) const {
    if constexpr (kAdds) {
      float y[kRun<T>];
      LoadStream<T>(a.x, a.x_is_float, x + i, a.dim - i, aligned, v);
      LoadRun(static_cast<const T*>(a.addend) + addend + i, a.dim - i, aligned, y);
#pragma unroll
      for (int j = 0; j < kRun<T>; ++j) v[j] = fmaf(a.scale, y[j], v[j]);
      StoreStream<T>(a.sum, a.x_is_float, sum + i, a.dim - i, aligned, v);
      Round(v);
    } else {
      Read(i, v);
    }
  }
  __device__ static void Round(float* v) {
    if constexpr (!kIsFloat<T>) {
#pragma unroll
      for (int j = 0; j < kRun<T>; ++j) v[j] = FromBits(ToBits(v[j]));
    }
  }
};

// `index` of `width` threads that share a group. The order of a sum depends on the group's size alone. A group may have
// two sums: sum_up(sum, 0) and sum_up(sum, 1).
template <typename T, bool kAdds, typename Sum>
__device__ void NormGroup(const RmsNormArgs& a, int64_t item, int index, int width, bool aligned, const Sum& sum_up) {
  const int64_t token = item / a.groups;
  const int64_t column = item % a.groups * a.dim;
  const NormInput<T, kAdds> input = {a, token * a.x_stride + column, token * a.addend_stride + column,
                                     token * a.groups * a.dim + column, aligned};
  const T* gate = a.gate == nullptr ? nullptr : static_cast<const T*>(a.gate) + token * a.gate_stride + column;
  T* out = static_cast<T*>(a.out) + token * a.out_stride + column;
  const float* weight = a.weight + (a.weight_per_group ? column : 0);
  const float* bias = a.bias == nullptr ? nullptr : a.bias + (a.weight_per_group ? column : 0);
  float v[kRun<T>], g[kRun<T>];
  float mean = 0;
  if (a.centered) {
    for (int64_t i = index * kRun<T>; i < a.dim; i += width * kRun<T>) {
      input.ReadFirst(i, v);
#pragma unroll
      for (int j = 0; j < kRun<T>; ++j) mean += v[j];
    }
    mean = sum_up(mean, 0) / static_cast<float>(a.dim);
  }
  float sum = 0;
  for (int64_t i = index * kRun<T>; i < a.dim; i += width * kRun<T>) {
    kAdds && !a.centered ? input.ReadFirst(i, v) : input.Read(i, v);
    if (gate != nullptr && a.gate_first) {
      LoadRun(gate + i, a.dim - i, aligned, g);
#pragma unroll
      for (int j = 0; j < kRun<T>; ++j) v[j] *= Silu(g[j]);
    }
#pragma unroll
    for (int j = 0; j < kRun<T>; ++j) {
      const float deviation = i + j < a.dim ? v[j] - mean : 0.0f;
      sum = fmaf(deviation, deviation, sum);
    }
  }
  const float inverse = 1.0f / sqrtf(sum_up(sum, 1) / static_cast<float>(a.dim) + a.eps);
  for (int64_t i = index * kRun<T>; i < a.dim; i += width * kRun<T>) {
    input.Read(i, v);
    if (gate != nullptr) LoadRun(gate + i, a.dim - i, aligned, g);
#pragma unroll
    for (int j = 0; j < kRun<T>; ++j) {
      if (i + j >= a.dim) break;
      v[j] = (v[j] - mean) * inverse * weight[i + j];
      if (bias != nullptr) v[j] += bias[i + j];
      if (gate != nullptr) v[j] *= Silu(g[j]);
    }
    StoreRun(out + i, a.dim - i, aligned, v);
  }
}

template <typename T, bool kAdds>
__global__ void __launch_bounds__(kWarpNormThreads)
    WarpNormKernel(const __grid_constant__ RmsNormArgs a, int64_t items, bool aligned) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kWarpNormThreads / kWarp) + WarpIndex();
  if (item >= items) return;
  NormGroup<T, kAdds>(a, item, Lane(), kWarp, aligned, [](float sum, int) { return WarpSum(sum); });
}

template <typename T, bool kAdds>
__global__ void __launch_bounds__(kThreads) BlockNormKernel(const __grid_constant__ RmsNormArgs a, bool aligned) {
  NormGroup<T, kAdds>(a, blockIdx.x, static_cast<int>(threadIdx.x), kThreads, aligned, [](float sum, int which) {
    return BlockSum(sum, reinterpret_cast<float*>(shared_memory) + which * (kThreads / kWarp));
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) ActivationKernel(const __grid_constant__ ActivationArgs a, bool aligned) {
  const int64_t token = blockIdx.x;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kRun<T>;
  if (i >= a.dim) return;
  float x[kRun<T>], up[kRun<T>];
  LoadRun(static_cast<const T*>(a.x) + token * a.stride + i, a.dim - i, aligned, x);
  if (a.up != nullptr) LoadRun(static_cast<const T*>(a.up) + token * a.stride + i, a.dim - i, aligned, up);
#pragma unroll
  for (int j = 0; j < kRun<T>; ++j) x[j] = Activated(a.activation, x[j], a.up == nullptr ? 1.0f : up[j], a.swiglu);
  StoreRun(static_cast<T*>(a.out) + token * a.dim + i, a.dim - i, aligned, x);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) RotaryKernel(const __grid_constant__ RotaryArgs a, bool aligned) {
  const int half = static_cast<int>(a.rotary_dim / 2);
  const int runs = (half + kRun<T> - 1) / kRun<T>;
  const int64_t token = blockIdx.x;
  const float* cosine = a.cos + a.rows[token] * half;
  const float* sine = a.sin + a.rows[token] * half;
  float x1[kRun<T>], x2[kRun<T>];
  for (int item = static_cast<int>(threadIdx.x); item < static_cast<int>(a.heads) * runs; item += kThreads) {
    const int first = item % runs * kRun<T>;
    T* x = static_cast<T*>(a.x) + token * a.stride + item / runs * a.head_dim + first;
    LoadRun(x, half - first, aligned, x1);
    LoadRun(x + half, half - first, aligned, x2);
#pragma unroll
    for (int j = 0; j < kRun<T>; ++j) {
      if (first + j >= half) break;
      const float c = cosine[first + j];
      const float s = sine[first + j];
      const float rotated = x1[j] * c - x2[j] * s;
      x2[j] = x2[j] * c + x1[j] * s;
      x1[j] = rotated;
    }
    StoreRun(x, half - first, aligned, x1);
    StoreRun(x + half, half - first, aligned, x2);
  }
}

}  // namespace

template <typename T, bool kAdds>
int LaunchNorm(const RmsNormArgs& a, const LaunchParams& launch) {
  const bool input = a.x_is_float ? AreAligned<float>(a.x, a.x_stride) : AreAligned<T>(a.x, a.x_stride);
  const bool addend = AreAligned<T>(a.addend, a.addend_stride) && AreAligned<T>(a.sum, a.dim);
  const bool aligned = input && addend && AreAligned<T>(a.out, a.out_stride) && AreAligned<T>(a.gate, a.gate_stride) &&
                       AreAligned<T>(nullptr, a.dim);
  const int64_t items = launch.num_tokens * a.groups;
  if (a.dim > kWarpNorm) {
    const int64_t room = 2 * kThreads / kWarp * sizeof(float);
    return Launch(BlockNormKernel<T, kAdds>, Grid(items), kThreads, room, launch.stream, a, aligned);
  }
  const int64_t blocks = CeilDiv(items, kWarpNormThreads / kWarp);
  return Launch(WarpNormKernel<T, kAdds>, Grid(blocks), kWarpNormThreads, 0, launch.stream, a, items, aligned);
}

template <typename T>
int RmsNorm(const RmsNormArgs& a, const LaunchParams& launch) {
  return a.addend == nullptr ? LaunchNorm<T, false>(a, launch) : LaunchNorm<T, true>(a, launch);
}

template <typename T>
int Activate(const ActivationArgs& a, const LaunchParams& launch) {
  const bool aligned = AreAligned<T>(a.x, a.stride) && AreAligned<T>(a.up, a.stride) && AreAligned<T>(a.out, a.dim);
  const int64_t columns = CeilDiv(a.dim, kThreads * kRun<T>);
  return Launch(ActivationKernel<T>, Grid(launch.num_tokens, columns), kThreads, 0, launch.stream, a, aligned);
}

template <typename T>
int Rotary(const RotaryArgs& a, const LaunchParams& launch) {
  const bool aligned =
      AreAligned<T>(a.x, a.stride) && AreAligned<T>(nullptr, a.head_dim) && AreAligned<T>(nullptr, a.rotary_dim / 2);
  return Launch(RotaryKernel<T>, Grid(launch.num_tokens), kThreads, 0, launch.stream, a, aligned);
}

BERTH_CUDA_ENTRY(RmsNorm, RmsNormArgs)
BERTH_CUDA_ENTRY(Activate, ActivationArgs)
BERTH_CUDA_ENTRY(Rotary, RotaryArgs)

}  // namespace berth::ops::cuda
