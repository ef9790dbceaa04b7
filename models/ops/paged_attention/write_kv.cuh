// New keys and values into the arena, quantised or not: a warp writes a head of a token. Only for .cu files.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_WRITE_KV_CUH_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_WRITE_KV_CUH_

#include "models/ops/paged_attention/kv.cuh"

namespace berth::ops::cuda {

// The largest of the warp's numbers without their signs. A number's bits without the sign are in its order, and those
// of a NaN above all: one NaN makes the scale NaN.
__device__ inline float WarpLargest(float value) {
  uint32_t bits = __float_as_uint(value) & 0x7FFFFFFFu;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(kWholeWarp, bits, step);
    bits = other > bits ? other : bits;
  }
  return __uint_as_float(bits);
}

// x / scale to nearest, ties to even, limited to [-steps, steps]: adding 1.5 * 2^23 leaves the integer in the low bits.
__device__ inline int Quantised(float x, float scale, float steps) {
  const float ratio = x / (scale == 0.0f ? 1.0f : scale);
  const float limited = ratio > steps ? steps : (ratio < -steps ? -steps : ratio);
  return static_cast<int>(__float_as_uint(limited + 12582912.0f)) - 0x4B400000;
}

template <typename T>
__device__ void WritePlain(const T* x, int dim, bool aligned, const TokenPlace& to) {
  float v[kRun<T>];
  for (int i = Lane() * kRun<T>; i < dim; i += kWarp * kRun<T>) {
    LoadRun(x + i, dim - i, aligned, v);
    StoreRun(reinterpret_cast<T*>(to.data) + i, dim - i, aligned, v);
  }
}

template <typename T>
__device__ void WriteInt8(const T* x, int dim, const TokenPlace& to) {
  constexpr float kSteps = 127.0f;
  float largest = 0;
  for (int first = 0; first < dim; first += kWarp) {
    const int i = first + Lane();
    const float all = WarpLargest(i < dim ? Load(x + i) : 0.0f);
    // Compares the bits, not the numbers: a comparison with a NaN is false.
    largest = __float_as_uint(all) > __float_as_uint(largest) ? all : largest;
  }
  const uint32_t rounded = ToBits(largest / kSteps);
  if (Lane() == 0) to.scales->bits = static_cast<uint16_t>(rounded);
  for (int i = Lane(); i < dim; i += kWarp) {
    to.data[i] = static_cast<char>(Quantised(Load(x + i), FromBits(rounded), kSteps));
  }
}

// A group of numbers at a time, one for each thread of the warp.
template <typename T>
__device__ void WriteInt4(const T* x, int dim, const TokenPlace& to) {
  static_assert(kInt4Group == kWarp);
  constexpr float kSteps = 7.0f;
  for (int group = 0; group < Int4Groups(dim); ++group) {
    const int count = dim - group * kWarp < kWarp ? dim - group * kWarp : kWarp;
    const int low = (count + 1) / 2;
    const float value = Lane() < count ? Load(x + group * kWarp + Lane()) : 0.0f;
    const uint32_t rounded = ToBits(WarpLargest(value) / kSteps);
    const int q = Quantised(value, FromBits(rounded), kSteps) + 8;
    const int partner = Lane() + low;
    const int high = __shfl_sync(kWholeWarp, q, partner < kWarp ? partner : Lane());
    if (Lane() == 0) to.scales[group].bits = static_cast<uint16_t>(rounded);
    if (Lane() < low) {
      to.data[group * (kWarp / 2) + Lane()] = static_cast<char>(q | ((partner < count ? high : 0) << 4));
    }
  }
}

// x: a head's numbers of the token at `position` of a row. aligned: x and its places lie on 16 bytes.
template <typename T>
__device__ void WriteHead(const T* x, const KvLayout& kv, const KvPlace& place, int row, int head, int position,
                          bool aligned) {
  const TokenPlace to = PlaceOf(kv, place, row, head, position);
  const int dim = static_cast<int>(place.dim);
  switch (kv.storage) {
    case DType::kFloat32:
    case DType::kBFloat16:
      return WritePlain(x, dim, aligned, to);
    case DType::kInt8:
      return WriteInt8(x, dim, to);
    case DType::kInt4:
      return WriteInt4(x, dim, to);
  }
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_WRITE_KV_CUH_
