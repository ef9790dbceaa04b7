// Tiles of keys or values in shared memory, as float32 whatever they are stored as. Part of attention_simt.cuh.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_SMEM_TILES_CUH_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_SMEM_TILES_CUH_

#include "models/ops/paged_attention/attention_state.cuh"

namespace berth::ops::cuda {

// Floats from one token of a tile to the next: the numbers, rounded up to an odd number of whole float4. So the eight
// threads that read at once read different banks.
inline __host__ __device__ int TileStride(int64_t dim) {
  const int fours = (static_cast<int>(dim) + 3) / 4;
  return (fours % 2 == 0 ? fours + 1 : fours) * 4;
}

// Writes v to numbers [i, i + count) of a token, of those that the tile has room for.
template <int kCount>
__device__ inline void PutRun(float* token, int i, int padded, const float* v) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (i + j < padded) token[i + j] = v[j];
  }
}

template <typename T>
__device__ inline void UnpackPlain(const TokenPlace& from, int i, int dim, bool aligned, float* token, int padded) {
  float v[kRun<T>] = {};
  if (from.data != nullptr) LoadRun(reinterpret_cast<const T*>(from.data) + i, dim - i, aligned, v);
  PutRun<kRun<T>>(token, i, padded, v);
}

// Eight numbers.
__device__ inline void UnpackInt8(const TokenPlace& from, int i, int dim, bool aligned, float* token, int padded) {
  float v[8] = {};
  if (from.data != nullptr) {
    const float scale = Load(from.scales);
    const int8_t* q = reinterpret_cast<const int8_t*>(from.data) + i;
    if (aligned && i + 8 <= dim) {
      const uint2 words = *reinterpret_cast<const uint2*>(q);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t word = j < 4 ? words.x : words.y;
        v[j] = static_cast<float>(static_cast<int8_t>((word >> (8 * (j % 4))) & 0xFFu)) * scale;
      }
    } else {
      for (int j = 0; j < 8 && i + j < dim; ++j) v[j] = static_cast<float>(q[j]) * scale;
    }
  }
  PutRun<8>(token, i, padded, v);
}

// Four bytes of a group of kInt4Group numbers: `chunk` counts them through all groups, kInt4Group / 8 each. They hold
// numbers from `low` on in their low halves, and those `half` later in their high ones.
__device__ inline void UnpackInt4(const TokenPlace& from, int chunk, int dim, float* token) {
  constexpr int kGroup = static_cast<int>(kInt4Group);
  const int group = chunk / (kGroup / 8);
  const int begin = group * kGroup;
  const int count = dim - begin < kGroup ? dim - begin : kGroup;
  const int half = (count + 1) / 2;
  const int first = chunk % (kGroup / 8) * 4;
  const bool exists = from.data != nullptr;
  const float scale = exists ? Load(from.scales + group) : 0.0f;
  for (int j = first; j < first + 4 && j < half; ++j) {
    const int byte = exists ? static_cast<uint8_t>(from.data[begin / 2 + j]) : 0x88;
    token[begin + j] = static_cast<float>((byte & 15) - 8) * scale;
    if (half + j < count) token[begin + half + j] = static_cast<float>((byte >> 4) - 8) * scale;
  }
}

// How many runs, of what one thread unpacks at once, make up a token.
__device__ inline int RunsOf(const TileFormat& format) {
  const int dim = format.dim;
  if (format.storage == DType::kInt4) return Int4Groups(dim) * static_cast<int>(kInt4Group) / 8;
  return format.storage == DType::kFloat32 ? (dim + 3) / 4 : (dim + 7) / 8;
}

__device__ inline void UnpackRun(const TileFormat& format, const TokenPlace& from, int run, float* token) {
  const int dim = format.dim;
  const int padded = (dim + 3) / 4 * 4;
  switch (format.storage) {
    case DType::kFloat32:
      return UnpackPlain<float>(from, run * 4, dim, format.aligned, token, padded);
    case DType::kBFloat16:
      return UnpackPlain<BFloat16>(from, run * 8, dim, format.aligned, token, padded);
    case DType::kInt8:
      return UnpackInt8(from, run * 8, dim, format.aligned, token, padded);
    case DType::kInt4:
      UnpackInt4(from, run, dim, token);
      for (int i = dim; run == 0 && i < padded; ++i) token[i] = 0;
  }
}

// Fills tile [kKeyTile, stride], numbers up to a whole float4 with zeros. `own`: where thread t of every warp finds
// token t; what has no place becomes zeros. All threads of the block take part; barriers around it are the caller's.
__device__ inline void LoadTile(const TileFormat& format, const TokenPlace& own, int stride, float* tile) {
  const int runs = RunsOf(format);
  const int items = kKeyTile * runs;
  // Whole warps go round, since all of a warp's threads take part in asking for a place.
  for (int first = WarpIndex() * kWarp; first < items; first += kAttentionThreads) {
    const int item = first + Lane();
    const int token = item < items ? item / runs : kKeyTile - 1;
    const TokenPlace from = PlaceOfToken(own, token);
    if (item < items) UnpackRun(format, from, item - token * runs, tile + token * stride);
  }
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_SMEM_TILES_CUH_
