// What the kernels are written in: numbers in memory, runs of them, sums across a warp, the functions of single
// numbers, and the launch. Only for .cu files.
//
// All that the kernels use of CUDA is in cuda_runtime.h, so tests/models/kernels/cuda_emulation can replace it. The one
// exception is an instruction in matrix.cuh. Without a CUDA compiler, a function of the emulation replaces that.
#ifndef BERTH_MODELS_KERNELS_CUDA_DEVICE_CUH_
#define BERTH_MODELS_KERNELS_CUDA_DEVICE_CUH_

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#include <mutex>

#include "models/kernels/cpu/panels.h"
#include "models/kernels/cuda/launch.h"

namespace berth::ops::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

// A block's shared memory, of the size that the launch says.
extern __shared__ float4 shared_memory[];

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int WarpIndex() { return static_cast<int>(threadIdx.x) / kWarp; }

__device__ inline float FromBits(uint32_t bfloat16_bits) { return __uint_as_float(bfloat16_bits << 16); }
// Rounded to nearest, ties to even; a NaN stays one.
__device__ inline uint32_t ToBits(float value) {
  const uint32_t bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return is_nan ? 0x7FC0u : (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}

__device__ inline float Load(const float* p) { return *p; }
__device__ inline float Load(const BFloat16* p) { return FromBits(p->bits); }
__device__ inline void Store(float* p, float value) { *p = value; }
__device__ inline void Store(BFloat16* p, float value) { p->bits = static_cast<uint16_t>(ToBits(value)); }

// Four numbers at an address aligned to all of them.
__device__ inline void LoadFour(const float* p, float* v) {
  const float4 x = *reinterpret_cast<const float4*>(p);
  v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}
__device__ inline void LoadFour(const BFloat16* p, float* v) {
  const uint2 x = *reinterpret_cast<const uint2*>(p);
  v[0] = __uint_as_float(x.x << 16), v[1] = __uint_as_float(x.x & 0xFFFF0000u);
  v[2] = __uint_as_float(x.y << 16), v[3] = __uint_as_float(x.y & 0xFFFF0000u);
}

template <typename T>
inline constexpr DType kTypeOf = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;

// The numbers of 16 bytes: what a thread loads at once.
template <typename T>
inline constexpr int kRun = 16 / static_cast<int>(sizeof(T));

__device__ inline void LoadVector(const float* p, float* v) { LoadFour(p, v); }
__device__ inline void LoadVector(const BFloat16* p, float* v) {
  const uint4 x = *reinterpret_cast<const uint4*>(p);
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}
__device__ inline void StoreVector(float* p, const float* v) {
  *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
}
__device__ inline void StoreVector(BFloat16* p, const float* v) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = ToBits(v[2 * i]) | (ToBits(v[2 * i + 1]) << 16);
  *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
}

// A run of numbers. Only the first `left` exist, and the others are zeros. `aligned`: whole runs lie on 16 bytes.
template <typename T>
__device__ inline void LoadRun(const T* p, int64_t left, bool aligned, float* v) {
  if (aligned && left >= kRun<T>) return LoadVector(p, v);
#pragma unroll
  for (int i = 0; i < kRun<T>; ++i) v[i] = i < left ? Load(p + i) : 0.0f;
}
template <typename T>
__device__ inline void StoreRun(T* p, int64_t left, bool aligned, const float* v) {
  if (aligned && left >= kRun<T>) return StoreVector(p, v);
#pragma unroll
  for (int i = 0; i < kRun<T>; ++i) {
    if (i < left) Store(p + i, v[i]);
  }
}
template <typename T>
__device__ inline void LoadFew(const T* p, int64_t left, bool aligned, float* v) {
  if (aligned && left >= 4) return LoadFour(p, v);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = i < left ? Load(p + i) : 0.0f;
}

template <typename T>
__device__ inline T WarpSum(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
  return value;
}
__device__ inline float WarpMax(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, step));
  return value;
}

// Over all threads of the block, by `room` of a float for each warp. The next use of the room needs a barrier before
// it.
__device__ inline float BlockSum(float value, float* room) {
  value = WarpSum(value);
  if (Lane() == 0) room[WarpIndex()] = value;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  return WarpSum(Lane() < warps ? room[Lane()] : 0.0f);
}

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float Silu(float x) { return x * Sigmoid(x); }
// ln(1 + exp(x)), without overflow.
__device__ inline float Softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1pf(expf(x > 0.0f ? -x : x)); }

inline int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Whether rows of T that begin at p, `stride` numbers apart, all begin on `bytes`.
template <typename T>
bool AreAligned(const void* p, int64_t stride, int64_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0 && stride * static_cast<int64_t>(sizeof(T)) % bytes == 0;
}

inline dim3 Grid(int64_t x, int64_t y = 1, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

// Returns the error of a call. The runtime also keeps an error for whoever asks next, who would take it for its own.
inline int ErrorOf(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// The kernels that may have more shared memory than a block has without asking: all that the device has. Each is asked
// for once, because the call takes the host about as long as a launch.
class LargeBlocks {
 public:
  static LargeBlocks& Instance() {
    static LargeBlocks blocks;
    return blocks;
  }

  // kNotCovered: the device has less. An error of CUDA's is not remembered.
  int Allow(const void* kernel, int64_t shared_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (most_bytes_ == 0) {
      const int error = ErrorOf(cudaDeviceGetAttribute(&most_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
      if (error != cudaSuccess) return error;
    }
    if (shared_bytes > most_bytes_) return kNotCovered;
    for (int i = 0; i < count_; ++i) {
      if (allowed_[i] == kernel) return kLaunched;
    }
    const int error = ErrorOf(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes_));
    if (error == cudaErrorInvalidValue) return kNotCovered;  // it has shared memory of a fixed size, too
    if (error != cudaSuccess) return error;
    if (count_ < kMost) allowed_[count_++] = kernel;
    return kLaunched;
  }

 private:
  static constexpr int kMost = 256;  // more than there are

  std::mutex mutex_;
  int most_bytes_ = 0;  // that a block may ask for
  const void* allowed_[kMost] = {};
  int count_ = 0;
};

// The one place that launches. The process sees one GPU, with number 0.
template <typename... Parameters, typename... Arguments>
int LaunchBlocks(void (*kernel)(Parameters...), dim3 grid, dim3 block, int64_t shared_bytes, void* stream,
                 const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return kLaunched;
  constexpr int64_t kWithoutAsking = 48 << 10;
  if (shared_bytes > kWithoutAsking) {
    const int result = LargeBlocks::Instance().Allow(reinterpret_cast<const void*>(kernel), shared_bytes);
    if (result != kLaunched) return result;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  return ErrorOf(cudaLaunchKernelEx(&config, kernel, arguments...));
}
template <typename... Parameters, typename... Arguments>
int Launch(void (*kernel)(Parameters...), dim3 grid, int threads, int64_t shared_bytes, void* stream,
           const Arguments&... arguments) {
  return LaunchBlocks(kernel, grid, dim3(static_cast<unsigned>(threads)), shared_bytes, stream, arguments...);
}

// Defines both types of an entry.
#define BERTH_CUDA_ENTRY(entry, args)                          \
  template int entry<float>(const args&, const LaunchParams&); \
  template int entry<BFloat16>(const args&, const LaunchParams&);

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_KERNELS_CUDA_DEVICE_CUH_
