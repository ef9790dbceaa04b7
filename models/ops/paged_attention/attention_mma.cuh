// Attention's products by the GPU's matrix units, where queries are bfloat16, and keys and values that or int8. Part of
// attention_kernel.cuh, which lists the members of a MathPolicy.
//
// A warp's 16 lanes are the rows of its products. A thread has pairs of neighbouring columns of the scores. This thread
// then multiplies values with them, as weights, so they need not move between threads (as in FlashAttention-2, Dao,
// 2023). A weight is cut into two numbers of bfloat16, which together hold its first 16 bits, as on the CPU
// (cpu_amx.inc). Numbers of int8 are numbers of bfloat16 too; a token's scale goes to its score, and to the weight of
// its value. A lane's sums do not depend on the others'.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_MMA_CUH_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_MMA_CUH_

#include "models/kernels/cuda/matrix.cuh"
#include "models/ops/paged_attention/attention_state.cuh"

namespace berth::ops::cuda {

// Numbers between the tokens, or queries, of a tile: whole products' (16), and then as many as let the threads that
// read at once read different banks.
inline __host__ __device__ int NumberStride(int64_t dim) { return (static_cast<int>(dim) + 15) / 16 * 16 + 8; }

// Fills tile [kKeyTile, stride], numbers after a token's last with zeros, and scales [kKeyTile]. `own`: where thread t
// of every warp finds token t; what has no place becomes zeros. All threads of the block take part; barriers around it
// are the caller's.
__device__ inline void LoadNumbers(const TileFormat& format, const TokenPlace& own, int stride, BFloat16* tile,
                                   float* scales) {
  constexpr int kAtOnce = 4;  // that a thread asks for before it waits
  const bool is_int8 = format.storage == DType::kInt8;
  const int runs = (stride - 8) / 8;
  const int items = kKeyTile * runs;  // a whole number of warps'
  for (int first = WarpIndex() * kWarp; first < items; first += kAtOnce * kAttentionThreads) {
    uint4 bits[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kAttentionThreads >= items) break;
      const int item = first + j * kAttentionThreads + Lane();
      const TokenPlace from = PlaceOfToken(own, item / runs);
      const int i = item % runs * 8;
      bits[j] = make_uint4(0, 0, 0, 0);
      if (from.data == nullptr) continue;
      bits[j] = is_int8 ? BitsOfEight(reinterpret_cast<const int8_t*>(from.data) + i, format.dim - i, format.aligned)
                        : BitsOfEight(reinterpret_cast<const BFloat16*>(from.data) + i, format.dim - i, format.aligned);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kAttentionThreads >= items) break;
      const int item = first + j * kAttentionThreads + Lane();
      *reinterpret_cast<uint4*>(tile + item / runs * stride + item % runs * 8) = bits[j];
    }
  }
  if (WarpIndex() == 0) scales[Lane()] = is_int8 && own.data != nullptr ? Load(own.scales) : 1.0f;
}

template <int kGroups>  // of 16 columns of the values
struct MmaMath {
  static constexpr int kWarpLanes = 16;
  static constexpr int kThreadLanes = 2;
  static constexpr int kLanes = kAttentionWarps * kWarpLanes;
  static constexpr int kValues = 4 * kGroups;
  static constexpr int kMostColumns = 16 * kGroups;
  using Lanes = Softmax<kValues>[kThreadLanes];

  __device__ static int LaneOf(int l) { return WarpIndex() * kWarpLanes + l * 8 + Quad(); }
  // Four neighbours in each group: columns 2n and 2n + 1 of the values are column n of two products.
  __device__ static int ColumnOf(int i) { return i / 4 * 16 + QuadLane() * 4 + i % 4; }
  __device__ static bool IsFirst() { return QuadLane() == 0; }

  struct Room {
    int key_stride, number_stride, value_stride;
    BFloat16* queries;    // [kLanes, key_stride]
    BFloat16* keys;       // [kKeyTile, key_stride]
    BFloat16* values;     // [kKeyTile, number_stride]
    float* key_scales;    // [kKeyTile]
    float* value_scales;  // [kKeyTile]
    float* totals;        // [kLanes, value_stride]

    __device__ explicit Room(const AttentionArgs& a)
        : key_stride(NumberStride(a.kv.key.dim)),
          number_stride(NumberStride(a.kv.value.dim)),
          value_stride(TotalStride(a.kv.value.dim)) {
      queries = reinterpret_cast<BFloat16*>(shared_memory);
      keys = queries + kLanes * key_stride;
      values = keys + kKeyTile * key_stride;
      key_scales = reinterpret_cast<float*>(values + kKeyTile * number_stride);
      value_scales = key_scales + kKeyTile;
      totals = value_scales + kKeyTile;
    }
  };
  static int64_t RoomBytes(const AttentionArgs& a, bool with_totals) {
    const int64_t numbers = (kLanes + kKeyTile) * NumberStride(a.kv.key.dim) + kKeyTile * NumberStride(a.kv.value.dim);
    const int64_t floats = 2 * kKeyTile + (with_totals ? kLanes * TotalStride(a.kv.value.dim) : 0);
    return numbers * static_cast<int64_t>(sizeof(BFloat16)) + floats * static_cast<int64_t>(sizeof(float));
  }

  __device__ static void LoadQueries(const AttentionArgs& a, DType, const LaneSet& set, const Room& room) {
    const int dim = static_cast<int>(a.kv.key.dim);
    const int runs = (room.key_stride - 8) / 8;
    const auto* query = static_cast<const BFloat16*>(a.query);
    const bool aligned =
        (reinterpret_cast<uintptr_t>(a.query) | a.query_stride * sizeof(BFloat16) | dim * sizeof(BFloat16)) % 16 == 0;
    for (int item = static_cast<int>(threadIdx.x); item < kLanes * runs; item += kAttentionThreads) {
      const int lane = item / runs;
      const int i = item % runs * 8;
      uint4 bits = make_uint4(0, 0, 0, 0);
      if (lane < set.count) {
        bits = BitsOfEight(query + set.Token(lane) * a.query_stride + set.Head(lane) * dim + i, dim - i, aligned);
      }
      *reinterpret_cast<uint4*>(room.queries + lane * room.key_stride + i) = bits;
    }
  }

  template <typename Keys>
  __device__ static void AttendTile(const AttentionArgs& a, const Keys& keys, const LaneSet& set, const Room& room,
                                    int part, int first, const Positions& read, Lanes& lanes) {
    const int own = first + Lane();
    TokenPlace key = {}, value = {};
    if (read.Contains(own)) {
      key = keys.Find(a, set, part, /*is_key=*/true, own);
      value = keys.Find(a, set, part, /*is_key=*/false, own);
    }
    __syncthreads();  // what was in the tiles has been read
    LoadNumbers(keys.FormatOf(a, part, /*is_key=*/true), key, room.key_stride, room.keys, room.key_scales);
    LoadNumbers(keys.FormatOf(a, part, /*is_key=*/false), value, room.number_stride, room.values, room.value_scales);
    __syncthreads();
    if (WarpIndex() * kWarpLanes >= set.count) return;
    float scores[kThreadLanes][kScores];
    Multiply(room, scores);
#pragma unroll
    for (int l = 0; l < kThreadLanes; ++l) WeighKeys(a, keys, set, room, part, first, LaneOf(l), scores[l], &lanes[l]);
    AddValues(room, scores, lanes);
  }

 private:
  // Scores that a thread has of a lane: two neighbouring keys' of each eight keys of the tile.
  static constexpr int kScores = kKeyTile / 8 * 2;
  static __host__ __device__ int TotalStride(int64_t dim) { return (static_cast<int>(dim) + 15) / 16 * 16 | 16; }
  // Which key of the tile a score is of.
  __device__ static int KeyOf(int i) { return i / 2 * 8 + QuadLane() * 2 + i % 2; }

  // Two neighbours from number i of a token of a tile.
  __device__ static uint32_t PairAt(const BFloat16* tile, int stride, int token, int i) {
    return *reinterpret_cast<const uint32_t*>(tile + token * stride + i);
  }

  __device__ static void Multiply(const Room& room, float (&scores)[kThreadLanes][kScores]) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[0][i] = scores[1][i] = 0;
    const int lane = LaneOf(0);
#pragma unroll 2
    for (int dim = 2 * QuadLane(); dim < room.key_stride - 8; dim += 16) {
      const uint32_t queries[4] = {PairAt(room.queries, room.key_stride, lane, dim),
                                   PairAt(room.queries, room.key_stride, lane + 8, dim),
                                   PairAt(room.queries, room.key_stride, lane, dim + 8),
                                   PairAt(room.queries, room.key_stride, lane + 8, dim + 8)};
#pragma unroll
      for (int i = 0; i < kScores; i += 2) {
        const int key = i / 2 * 8 + Quad();
        AddProduct(queries, PairAt(room.keys, room.key_stride, key, dim),
                   PairAt(room.keys, room.key_stride, key, dim + 8), scores[0][i], scores[0][i + 1], scores[1][i],
                   scores[1][i + 1]);
      }
    }
  }

  // A lane's scores into weights relative to its largest score so far, which they may raise, and the weights into what
  // the stored values are multiplied with.
  template <typename Keys>
  __device__ static void WeighKeys(const AttentionArgs& a, const Keys& keys, const LaneSet& set, const Room& room,
                                   int part, int first, int lane, float (&scores)[kScores], Softmax<kValues>* softmax) {
    const int position = set.Position(lane);
    Positions visible = keys.VisibleIn(a, set, position, part);
    if (lane >= set.count) visible.last = visible.first;
    float top = softmax->max;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int key = first + KeyOf(i);
      const float score = scores[i] * (a.scale * room.key_scales[KeyOf(i)]);
      scores[i] = visible.Contains(key) ? Finished(a, score, set.Head(lane), key - position) : -INFINITY;
      top = fmaxf(top, scores[i]);
    }
    top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
    const bool sees_none = top == -INFINITY;
    const float shrink = sees_none ? 1.0f : expf(softmax->max - top);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const float weight = visible.Contains(first + KeyOf(i)) ? expf(scores[i] - top) : 0.0f;
      sum += weight;
      scores[i] = weight * room.value_scales[KeyOf(i)];
    }
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    softmax->max = top;
    softmax->sum = fmaf(softmax->sum, shrink, sum);
#pragma unroll
    for (int i = 0; i < kValues; ++i) softmax->values[i] *= shrink;
  }

  // Adds the tile's values times their factors, in ascending order of positions, 16 at once.
  __device__ static void AddValues(const Room& room, const float (&factors)[kThreadLanes][kScores], Lanes& lanes) {
#pragma unroll
    for (int step = 0; step < kKeyTile / 16; ++step) {
      uint32_t high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // lane i % 2, of the step's first or last eight keys
        const float* two = &factors[i % 2][step * 4 + i / 2 * 2];
        high[i] = PairOf(ToBits(two[0]), ToBits(two[1]));
        low[i] = PairOf(ToBits(two[0] - FromBits(high[i] & 0xFFFFu)), ToBits(two[1] - FromBits(high[i] >> 16)));
      }
      const int token = step * 16 + 2 * QuadLane();
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int column = group * 16 + 2 * Quad();
        if (group * 16 >= room.number_stride - 8) break;
        const uint32_t first[2] = {PairAt(room.values, room.number_stride, token, column),
                                   PairAt(room.values, room.number_stride, token + 1, column)};
        const uint32_t last[2] = {PairAt(room.values, room.number_stride, token + 8, column),
                                  PairAt(room.values, room.number_stride, token + 9, column)};
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const uint32_t b0 =
              PairOf(odd == 0 ? first[0] & 0xFFFFu : first[0] >> 16, odd == 0 ? first[1] & 0xFFFFu : first[1] >> 16);
          const uint32_t b1 =
              PairOf(odd == 0 ? last[0] & 0xFFFFu : last[0] >> 16, odd == 0 ? last[1] & 0xFFFFu : last[1] >> 16);
          const int i = group * 4 + odd;
          AddProduct(high, b0, b1, lanes[0].values[i], lanes[0].values[i + 2], lanes[1].values[i],
                     lanes[1].values[i + 2]);
          AddProduct(low, b0, b1, lanes[0].values[i], lanes[0].values[i + 2], lanes[1].values[i],
                     lanes[1].values[i + 2]);
        }
      }
    }
  }
};

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_MMA_CUH_
