// Stands in for CUDA's header of this name, so that the CUDA kernels compile for the CPU and run there, emulated: to
// test what they compute. It tells nothing of how fast they are, nor whether a GPU's compiler, memory or scheduler
// would find a fault that one thread does not.
//
// Every CUDA thread is a fibre of the calling thread. It runs, in a chosen order, until it has to wait for others. A
// warp runs as far as it can without the other warps, except in random order. Blocks run one after the other. The
// emulation is stricter than a GPU. These end the program: a race (races.h), a barrier that a thread of the block or
// warp never reaches, an unaligned access, and an access past the launch's shared memory. Shared memory begins as NaN.
// Only what the kernels and the emulation's own tests use is here. Not thread-safe.
#ifndef BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_
#define BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
// barrier, or has blocks that depend on each other. kRandom: another order for each seed. A thread may then have to
// wait after any access to memory.
enum class Order { kAscending, kDescending, kRandom };
void SetOrder(Order order, uint32_t seed = 1);

// Runs `thread` once for each thread of each block, of `blockDim` in `gridDim`.
void RunGrid(size_t shared_bytes, const std::function<void()>& thread);
int64_t NumBlocks();    // that have run
int64_t NumLaunches();  // the same

// Returns when all of the block, or of the warp, have called it.
void WaitForBlock();
void WaitForWarp(unsigned mask);
// Gives `bits` to the warp. Returns, when all of the warp have given theirs, those of a lane, or their first bits from
// the lowest lane up.
uint64_t ExchangeWith(unsigned mask, uint64_t bits, int lane);
unsigned Ballot(unsigned mask, bool bit);
int LaneOfThread();

// What an atomic operation does first.
void NoteAtomic(const void* p, size_t size_bytes);
// memcpy of a thread.
void Copy(void* to, const void* from, size_t size_bytes);
// See cuda_pipeline_primitives.h.
void CopyLater(void* to, const void* from, size_t size_bytes, size_t zeros);
void CommitCopies();
void WaitForCopies(size_t groups_left);

// The warp's product of the matrix units; see models/kernels/cuda/matrix.cuh. Sums in ascending order; the order of a
// GPU is not documented.
void AddProduct(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const std::array<float*, 4>& sums);

template <typename T>
T Shuffle(unsigned mask, T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(value));
  bits = ExchangeWith(mask, bits, lane);
  memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace cuda_emulation

namespace berth::ops::cuda {

// Kernels find it before the C library's, which no hook sees.
inline void* memcpy(void* to, const void* from, size_t size_bytes) {
  cuda_emulation::Copy(to, from, size_bytes);
  return to;
}

}  // namespace berth::ops::cuda

inline void __syncthreads() { cuda_emulation::WaitForBlock(); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { cuda_emulation::WaitForWarp(mask); }
template <typename T>
__attribute__((no_sanitize_thread)) T atomicAdd(T* p, T value) {
  cuda_emulation::NoteAtomic(p, sizeof(T));
  const T before = *p;  // no other thread runs
  *p = before + value;
  return before;
}
template <typename T>
__attribute__((no_sanitize_thread)) T atomicExch(T* p, T value) {
  cuda_emulation::NoteAtomic(p, sizeof(T));
  const T before = *p;
  *p = value;
  return before;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return cuda_emulation::Shuffle(mask, value, lane);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  return cuda_emulation::Shuffle(mask, value, cuda_emulation::LaneOfThread() ^ lane_mask);
}
inline int __any_sync(unsigned mask, int predicate) {
  return cuda_emulation::Ballot(mask, predicate != 0) != 0 ? 1 : 0;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return cuda_emulation::Ballot(mask, predicate != 0); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline float __uint_as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
// Nothing is fused here anyway.
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
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
  int num_attribute_calls = 0;  // of cudaFuncSetAttribute
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
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
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
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = kMostSharedBytes;
  return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  ++cuda_emulation::CurrentErrors().num_attribute_calls;
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
  cuda_emulation::RunGrid(config->dynamicSmemBytes, [&] { kernel(arguments...); });
  return cudaSuccess;
}

#endif  // BERTH_TESTS_MODELS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_
