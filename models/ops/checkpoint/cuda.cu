// Quantises states to checkpoints and expands them: a warp for each group of numbers that share a scale.
#include "models/kernels/cuda/device.cuh"
#include "models/ops/checkpoint/checkpoint_args.h"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
static_assert(kStateGroup == kWarp);

// As in cache/checkpoint.cc.
constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr float kSmallest = 1e-35f;
constexpr float kRound = 12582912.0f;

__device__ inline float LoadNumber(const char* p, bool is_float, int64_t i) {
  return is_float ? Load(reinterpret_cast<const float*>(p) + i) : Load(reinterpret_cast<const BFloat16*>(p) + i);
}
__device__ inline void StoreNumber(char* p, bool is_float, int64_t i, float value) {
  if (is_float) return Store(reinterpret_cast<float*>(p) + i, value);
  Store(reinterpret_cast<BFloat16*>(p) + i, value);
}

__device__ inline uint32_t WarpMaxOf(uint32_t value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(kWholeWarp, value, step));
  return value;
}

// The bits of the scale of the warp's numbers.
__device__ inline uint32_t ScaleOf(float number) {
  const uint32_t largest = WarpMaxOf(__float_as_uint(number) & kMagnitude);
  if (largest >= kInfinity) return 0x7fc0u;  // NaN
  const float magnitude = __uint_as_float(largest);
  return magnitude >= kSmallest ? ToBits(magnitude / 127.0f) : 0u;
}

// Without fusing, which would round once instead of twice.
__device__ inline int8_t Quantised(float number, uint32_t scale) {
  if (scale == 0 || scale == 0x7fc0u) return 0;
  const float inverse = 1.0f / FromBits(scale);
  return static_cast<int8_t>(__float_as_uint(__fadd_rn(__fmul_rn(number, inverse), kRound)));
}

// The warp fills [begin, end) with zeros, which are fewer than 64 bytes.
__device__ inline void ClearBytes(char* p, int64_t begin, int64_t end) {
  for (int64_t i = begin + Lane(); i < end; i += kWarp) p[i] = 0;
}

// blockIdx = (kWarps groups, tensor).
__global__ void __launch_bounds__(kThreads) ConvertStatesKernel(const __grid_constant__ ConvertStatesArgs a) {
  const CheckpointState& t = a.tensors[blockIdx.y];
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kWarps + WarpIndex();
  const int64_t i = group * kStateGroup + Lane();
  if (group * kStateGroup >= t.num_elements) return;
  const bool exists = i < t.num_elements;
  const bool is_float = static_cast<DType>(t.dtype) == DType::kFloat32;
  char* const state = a.states + t.state_offset;
  char* const kept = a.checkpoint + t.offset;
  if (t.scale_offset == 0) {  // copied as it is
    if (exists && a.expands) StoreNumber(state, is_float, i, LoadNumber(kept, is_float, i));
    if (exists && !a.expands) StoreNumber(kept, is_float, i, LoadNumber(state, is_float, i));
    if (group == 0 && !a.expands) ClearBytes(kept, t.num_elements * (is_float ? 4 : 2), t.size_bytes);
    return;
  }
  BFloat16* const scales = reinterpret_cast<BFloat16*>(kept + t.scale_offset);
  if (a.expands) {
    const float scale = Load(scales + group);
    if (exists) StoreNumber(state, is_float, i, static_cast<float>(static_cast<int8_t>(kept[i])) * scale);
    return;
  }
  const float number = exists ? LoadNumber(state, is_float, i) : 0.0f;
  const uint32_t scale = ScaleOf(number);
  if (exists) kept[i] = static_cast<char>(Quantised(number, scale));
  if (Lane() == 0) scales[group].bits = static_cast<uint16_t>(scale);
  if (group == 0) {
    const int64_t groups = (t.num_elements + kStateGroup - 1) / kStateGroup;
    ClearBytes(kept, t.num_elements, t.scale_offset);
    ClearBytes(kept, t.scale_offset + groups * static_cast<int64_t>(sizeof(BFloat16)), t.size_bytes);
  }
}

}  // namespace

template <typename T>
int ConvertStates(const ConvertStatesArgs& a, const LaunchParams& launch) {
  return Launch(ConvertStatesKernel, Grid(CeilDiv(CeilDiv(a.most_elements, kStateGroup), kWarps), a.num_tensors),
                kThreads, 0, launch.stream, a);
}
BERTH_CUDA_ENTRY(ConvertStates, ConvertStatesArgs)

}  // namespace berth::ops::cuda
