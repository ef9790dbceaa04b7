// Stands in for CUDA's header of this name, so that the CUDA kernels compile for the CPU and run there, emulated: to
// test what they compute. It tells nothing of how fast they are, nor whether a GPU's compiler, memory or scheduler
// would find a fault that one thread does not.
//
// Every CUDA thread is a fibre of the calling thread. It runs, in a fixed order, until it has to wait for others. A
// warp runs as far as it can without the other warps. Blocks run one after the other. The emulation is stricter than a
// GPU. These end the program: a barrier that a thread of the block or warp never reaches, an unaligned access, and a
// write past the launch's shared memory. Shared memory begins as NaN. Only what the kernels use is here. Not
// thread-safe.
#ifndef BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_
#define BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <array>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// These belong to the running fibre.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_emulation {

// The order in which a block's threads, and a launch's blocks, take their turns. A kernel whose result differs lacks a
// barrier, or has blocks that depend on each other.
enum class Order { kAscending, kDescending };
void SetOrder(Order order);

// Runs `thread` once for each thread of a block of `threads`.
void RunBlock(int threads, size_t shared_bytes, const std::function<void()>& thread);
Order CurrentOrder();
int64_t NumBlocks();  // that have run

// Returns when all of the block have called it.
void WaitForBlock();
// Gives `bits` to the warp; returns those of all its threads when all have given theirs. Good until the next call.
const std::array<uint64_t, 32>& Exchange(unsigned mask, uint64_t bits);
int LaneOfThread();

// The warp's product of the matrix units; see models/kernels/cuda/matrix.cuh. Sums in ascending order; the order of a
// GPU is not documented.
void AddProduct(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const std::array<float*, 4>& sums);

template <typename T>
T Shuffle(unsigned mask, T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(value));
  memcpy(&value, &Exchange(mask, bits).at(static_cast<size_t>(lane)), sizeof(value));
  return value;
}

}  // namespace cuda_emulation

inline void __syncthreads() { cuda_emulation::WaitForBlock(); }
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return cuda_emulation::Shuffle(mask, value, lane);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  return cuda_emulation::Shuffle(mask, value, cuda_emulation::LaneOfThread() ^ lane_mask);
}
inline int __any_sync(unsigned mask, int predicate) {
  int any = 0;
  for (uint64_t bits : cuda_emulation::Exchange(mask, predicate != 0 ? 1 : 0)) any |= static_cast<int>(bits);
  return any;
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned ballot = 0;
  unsigned lane = 0;
  for (uint64_t bits : cuda_emulation::Exchange(mask, predicate != 0 ? 1 : 0)) {
    ballot |= static_cast<unsigned>(bits) << lane++;
  }
  return ballot;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline float __uint_as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
inline long long __double_as_longlong(double value) {
  long long bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
template <typename T>
T min(T x, T y) {
  return y < x ? y : x;
}
template <typename T>
T max(T x, T y) {
  return x < y ? y : x;
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorIllegalAddress = 700
};

namespace cuda_emulation {

// What calls fail with while it is set. The runtime keeps the error for cudaGetLastError, as CUDA's does.
struct Errors {
  cudaError_t of_launches = cudaSuccess;
  cudaError_t of_attributes = cudaSuccess;
  cudaError_t kept = cudaSuccess;
};
inline Errors& CurrentErrors() {
  static Errors errors;
  return errors;
}
inline cudaError_t Keep(cudaError_t error) {
  if (error != cudaSuccess) CurrentErrors().kept = error;
  return error;
}

}  // namespace cuda_emulation
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
using cudaStream_t = struct CUstream_st*;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};
inline constexpr int kMostSharedBytes = 227 << 10;  // an H200's
inline cudaError_t cudaGetLastError() {
  const cudaError_t error = cuda_emulation::CurrentErrors().kept;
  cuda_emulation::CurrentErrors().kept = cudaSuccess;
  return error;
}
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  const cudaError_t error = cuda_emulation::CurrentErrors().of_attributes;
  if (error != cudaSuccess) return cuda_emulation::Keep(error);
  return cuda_emulation::Keep(bytes <= kMostSharedBytes ? cudaSuccess : cudaErrorInvalidValue);
}

// The work is done when it returns, whatever the stream.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  const cudaError_t error = cuda_emulation::CurrentErrors().of_launches;
  if (error != cudaSuccess) return cuda_emulation::Keep(error);
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  const int64_t blocks = int64_t{gridDim.x} * gridDim.y * gridDim.z;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t b = cuda_emulation::CurrentOrder() == cuda_emulation::Order::kAscending ? i : blocks - 1 - i;
    blockIdx = dim3(static_cast<unsigned>(b % gridDim.x), static_cast<unsigned>(b / gridDim.x % gridDim.y),
                    static_cast<unsigned>(b / gridDim.x / gridDim.y));
    cuda_emulation::RunBlock(static_cast<int>(blockDim.x), config->dynamicSmemBytes, [&] { kernel(arguments...); });
  }
  return cudaSuccess;
}

#endif  // BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_
