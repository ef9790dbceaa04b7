// Products of tiles of bfloat16 rows with a matrix, by the GPU's matrix units. Part of matmul/cuda.cu.
//
// A block computes kTileOutputs outputs of kTileRows rows. It goes along the inputs by kTileInputs at a time, which it
// puts into shared memory in bfloat16. Whole numbers up to 128 have at most eight bits, so weights of 8 bits lose
// nothing. Their scales multiply the sums. The loads of several steps' weights are under way at once.
#ifndef BERTH_MODELS_OPS_MATMUL_TILE_PRODUCT_CUH_
#define BERTH_MODELS_OPS_MATMUL_TILE_PRODUCT_CUH_

#include "models/kernels/cuda/matrix.cuh"
#include "models/ops/matmul/product_rows.cuh"

namespace berth::ops::cuda {

inline constexpr int kTileThreads = 128;
inline constexpr int kTileRows = kTileThreads / kWarp * 16;  // 16 of a warp
inline constexpr int kTileOutputs = 32;
inline constexpr int kTileInputs = 128;
inline constexpr int kTileStride = kTileInputs + 8;  // so that the rows of a warp's quads lie in different banks
inline constexpr int kThreadWeights = kTileOutputs * kTileInputs / kTileThreads;
inline constexpr int kWeightSteps = 2;                 // whose weights are on their way
inline constexpr int kThreadsOfRow = kTileInputs / 8;  // which load a row of x
inline constexpr int kRowsAtOnce = kTileThreads / kThreadsOfRow;
inline constexpr int kThreadRows = kTileRows / kRowsAtOnce;
inline constexpr int64_t kTileBytes = (kTileRows + kTileOutputs) * kTileStride * int64_t{sizeof(BFloat16)};

// The weights of one step that a thread brings: neighbours of one output, as they are stored.
template <typename W>
struct ThreadWeights {
  uint4 words[kThreadWeights * sizeof(W) / sizeof(uint4)];
};

// Loads those that exist, `left` of them at most; zeros for the others.
template <typename W>
__device__ inline ThreadWeights<W> LoadThreadWeights(const W* p, int64_t left, bool aligned) {
  ThreadWeights<W> loaded = {};
  if (aligned && left >= kThreadWeights) {
#pragma unroll
    for (size_t i = 0; i < sizeof(loaded.words) / sizeof(uint4); ++i) {
      loaded.words[i] = reinterpret_cast<const uint4*>(p)[i];
    }
    return loaded;
  }
  W* const numbers = reinterpret_cast<W*>(loaded.words);
#pragma unroll
  for (int i = 0; i < kThreadWeights; ++i) {
    if (i < left) numbers[i] = p[i];
  }
  return loaded;
}

// In bfloat16.
__device__ inline void StoreThreadWeights(const ThreadWeights<BFloat16>& loaded, BFloat16* to) {
#pragma unroll
  for (int i = 0; i < kThreadWeights / 8; ++i) reinterpret_cast<uint4*>(to)[i] = loaded.words[i];
}
__device__ inline void StoreThreadWeights(const ThreadWeights<int8_t>& loaded, BFloat16* to) {
#pragma unroll
  for (int i = 0; i < kThreadWeights / 16; ++i) {
    const uint4& x = loaded.words[i];
    reinterpret_cast<uint4*>(to)[2 * i] = BitsOfEight(uint2{x.x, x.y});
    reinterpret_cast<uint4*>(to)[2 * i + 1] = BitsOfEight(uint2{x.z, x.w});
  }
}

// Two neighbours in shared memory.
__device__ inline uint32_t PairAt(const BFloat16* p) { return *reinterpret_cast<const uint32_t*>(p); }

// Adds the warp's part of a step: 16 rows by all outputs.
__device__ inline void AddStep(const BFloat16* x_tile, const BFloat16* w_tile, float (&sums)[kTileOutputs / 8][4]) {
#pragma unroll
  for (int k = 0; k < kTileInputs; k += 16) {
    const int column = k + 2 * QuadLane();
    const BFloat16* const upper = x_tile + (WarpIndex() * 16 + Quad()) * kTileStride + column;
    const BFloat16* const lower = upper + 8 * kTileStride;
    const uint32_t a[4] = {PairAt(upper), PairAt(lower), PairAt(upper + 8), PairAt(lower + 8)};
#pragma unroll
    for (int n = 0; n < kTileOutputs / 8; ++n) {
      const BFloat16* const b = w_tile + (n * 8 + Quad()) * kTileStride + column;
      AddProduct(a, PairAt(b), PairAt(b + 8), sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
    }
  }
}

// Scales the warp's sums and adds the bias.
template <typename W>
__device__ void StoreSums(const Weight<W>& weight, const Rows<BFloat16>& r, int rows, int64_t first_output,
                          const float (&sums)[kTileOutputs / 8][4]) {
#pragma unroll
  for (int n = 0; n < kTileOutputs / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = WarpIndex() * 16 + Quad() + i / 2 * 8;
      const int64_t output = first_output + n * 8 + 2 * QuadLane() + i % 2;
      if (row >= rows || output >= weight.outputs) continue;
      const float scale = weight.scales == nullptr ? 1.0f : weight.scales[output];
      const float bias = r.bias == nullptr ? 0.0f : Load(r.bias + output);
      Store(r.Out(row) + output, fmaf(sums[n][i], scale, bias));
    }
  }
}

// What a thread brings to a tile, step by step: weights of one output, and eight numbers of some rows.
template <typename W>
struct TileLoader {
  const Weight<W>& weight;
  const Rows<BFloat16>& r;
  int rows;

  __device__ static int WeightRow() { return static_cast<int>(threadIdx.x) / (kTileInputs / kThreadWeights); }
  __device__ static int WeightColumn() {
    return static_cast<int>(threadIdx.x) % (kTileInputs / kThreadWeights) * kThreadWeights;
  }
  __device__ static int Row(int i) { return static_cast<int>(threadIdx.x) / kThreadsOfRow + i * kRowsAtOnce; }
  __device__ static int Column() { return static_cast<int>(threadIdx.x) % kThreadsOfRow * 8; }

  __device__ ThreadWeights<W> Weights(int64_t first_output, int64_t step) const {
    const bool aligned = (reinterpret_cast<uintptr_t>(weight.values) | weight.inputs * sizeof(W)) % sizeof(uint4) == 0;
    const int64_t output = min(first_output + WeightRow(), weight.outputs - 1);
    const int64_t at = step * kTileInputs + WeightColumn();
    return LoadThreadWeights(weight.values + output * weight.inputs + at, weight.inputs - at, aligned);
  }
  __device__ uint4 RowPart(int i, int64_t step) const {
    const int64_t at = step * kTileInputs + Column();
    const int64_t left = Row(i) < rows ? weight.inputs - at : 0;
    if (left <= 0) return make_uint4(0, 0, 0, 0);
    return BitsOfEight(r.X(Row(i)) + at, static_cast<int>(min(left, static_cast<int64_t>(8))), r.x_aligned);
  }
};

// The block's outputs of `rows` rows, at most kTileRows. All threads take part.
template <typename W>
__device__ void MultiplyTile(const Weight<W>& weight, const Rows<BFloat16>& r, int rows) {
  BFloat16* const x_tile = reinterpret_cast<BFloat16*>(shared_memory);  // [kTileRows, kTileStride]
  BFloat16* const w_tile = x_tile + kTileRows * kTileStride;            // [kTileOutputs, kTileStride]
  const int64_t first_output = static_cast<int64_t>(blockIdx.x) * kTileOutputs;
  const int64_t steps = (weight.inputs + kTileInputs - 1) / kTileInputs;
  const TileLoader<W> loader = {weight, r, rows};
  using Loader = TileLoader<W>;
  ThreadWeights<W> weights[kWeightSteps];
  uint4 x[kThreadRows];
#pragma unroll
  for (int s = 0; s < kWeightSteps; ++s) weights[s] = loader.Weights(first_output, s);
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) x[i] = loader.RowPart(i, 0);

  float sums[kTileOutputs / 8][4] = {};
  for (int64_t first = 0; first < steps; first += kWeightSteps) {
#pragma unroll
    for (int s = 0; s < kWeightSteps; ++s) {
      const int64_t step = first + s;
      if (step >= steps) break;
      __syncthreads();  // what was there has been read
      StoreThreadWeights(weights[s], w_tile + Loader::WeightRow() * kTileStride + Loader::WeightColumn());
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        *reinterpret_cast<uint4*>(x_tile + Loader::Row(i) * kTileStride + Loader::Column()) = x[i];
      }
      __syncthreads();
      weights[s] = loader.Weights(first_output, step + kWeightSteps);
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) x[i] = loader.RowPart(i, step + 1);
      if (WarpIndex() * 16 < rows) AddStep(x_tile, w_tile, sums);
    }
  }
  if (WarpIndex() * 16 < rows) StoreSums(weight, r, rows, first_output, sums);
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_MATMUL_TILE_PRODUCT_CUH_
