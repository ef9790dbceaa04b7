// Attention's products by plain arithmetic in float32, whatever the types: each lane is its warp's, a thread has a key,
// and then some columns of the values. Part of attention_kernel.cuh, which lists the members of a MathPolicy.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_SIMT_CUH_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_SIMT_CUH_

#include "models/ops/paged_attention/smem_tiles.cuh"

namespace berth::ops::cuda {

template <int kColumns>  // of a thread
struct SimtMath {
  static constexpr int kThreadLanes = 4;
  static constexpr int kLanes = kAttentionWarps * kThreadLanes;
  static constexpr int kValues = kColumns;
  static constexpr int kMostColumns = kColumns * kWarp;
  using Lanes = Softmax<kValues>[kThreadLanes];

  // Few lanes are spread over the warps.
  __device__ static int LaneOf(int l) { return l * kAttentionWarps + WarpIndex(); }
  __device__ static int ColumnOf(int i) { return i * kWarp + Lane(); }
  __device__ static bool IsFirst() { return Lane() == 0; }
  // In decode of few heads the work of the other lanes is left out.
  __device__ static bool HasOneLanePerWarp(const LaneSet& set) { return set.count <= kAttentionWarps; }

  struct Room {
    int key_stride, value_stride;
    float* queries;  // [kLanes, key_stride], scaled
    float* weights;  // [kLanes, kKeyTile]
    float* tile;     // [kKeyTile, key_stride or value_stride]
    float* totals;   // [kLanes, value_stride]

    __device__ explicit Room(const AttentionArgs& a)
        : key_stride(TileStride(a.kv.key.dim)), value_stride(TileStride(a.kv.value.dim)) {
      queries = reinterpret_cast<float*>(shared_memory);
      weights = queries + kLanes * key_stride;
      tile = weights + kLanes * kKeyTile;
      totals = tile + kKeyTile * max(key_stride, value_stride);
    }
  };
  static int64_t RoomBytes(const AttentionArgs& a, bool with_totals) {
    const int key_stride = TileStride(a.kv.key.dim);
    const int value_stride = TileStride(a.kv.value.dim);
    const int tile_stride = key_stride > value_stride ? key_stride : value_stride;
    const int floats = kLanes * (key_stride + kKeyTile + (with_totals ? value_stride : 0)) + kKeyTile * tile_stride;
    return floats * static_cast<int64_t>(sizeof(float));
  }

  __device__ static void LoadQueries(const AttentionArgs& a, DType type, const LaneSet& set, const Room& room) {
    const int dim = static_cast<int>(a.kv.key.dim);
    for (int lane = WarpIndex(); lane < set.count; lane += kAttentionWarps) {
      const int64_t first = set.Token(lane) * a.query_stride + set.Head(lane) * dim;
      for (int i = Lane(); i < (dim + 3) / 4 * 4; i += kWarp) {
        room.queries[lane * room.key_stride + i] = i < dim ? LoadAs(type, a.query, first + i) * a.scale : 0.0f;
      }
    }
  }

  template <typename Keys>
  __device__ static void AttendTile(const AttentionArgs& a, const Keys& keys, const LaneSet& set, const Room& room,
                                    int part, int first, const Positions& read, Lanes& lanes) {
    const int own = first + Lane();
#pragma unroll 1  // one copy of the loader
    for (int pass = 0; pass < 2; ++pass) {
      const bool is_key = pass == 0;
      const TokenPlace place = read.Contains(own) ? keys.Find(a, set, part, is_key, own) : TokenPlace{};
      __syncthreads();  // what was in the tile has been read
      LoadTile(keys.FormatOf(a, part, is_key), place, is_key ? room.key_stride : room.value_stride, room.tile);
      __syncthreads();
      if (is_key) {
        WeighKeys(a, keys, set, room, part, first, lanes);
      } else if (HasOneLanePerWarp(set)) {
        AddValues<1>(room, static_cast<int>(a.kv.value.dim), lanes);
      } else {
        AddValues<kThreadLanes>(room, static_cast<int>(a.kv.value.dim), lanes);
      }
    }
  }

 private:
  // The scores of this thread's key and the warp's first kCount lanes, the sums in ascending order of the dimensions.
  template <int kCount>
  __device__ static void Dot(const Room& room, int dim, float* scores) {
    const float4* key = reinterpret_cast<const float4*>(room.tile + Lane() * room.key_stride);
    const float4* queries = reinterpret_cast<const float4*>(room.queries);
#pragma unroll
    for (int l = 0; l < kCount; ++l) scores[l] = 0;
    for (int i = 0; i < (dim + 3) / 4; ++i) {
      const float4 k = key[i];
#pragma unroll
      for (int l = 0; l < kCount; ++l) {  // queries of lanes that are none are never looked at
        const float4 q = queries[LaneOf(l) * (room.key_stride / 4) + i];
        scores[l] = fmaf(q.x, k.x, scores[l]);
        scores[l] = fmaf(q.y, k.y, scores[l]);
        scores[l] = fmaf(q.z, k.z, scores[l]);
        scores[l] = fmaf(q.w, k.w, scores[l]);
      }
    }
  }

  // Scores of the tile's keys into weights relative to the lanes' largest score so far, which they may raise.
  template <typename Keys>
  __device__ static void WeighKeys(const AttentionArgs& a, const Keys& keys, const LaneSet& set, const Room& room,
                                   int part, int first, Lanes& lanes) {
    float scores[kThreadLanes];
    const int dim = static_cast<int>(a.kv.key.dim);
    if (HasOneLanePerWarp(set)) {
      Dot<1>(room, dim, scores);
    } else {
      Dot<kThreadLanes>(room, dim, scores);
    }
    const int key = first + Lane();
#pragma unroll
    for (int l = 0; l < kThreadLanes; ++l) {
      const int lane = LaneOf(l);
      if (lane >= set.count) break;
      const int position = set.Position(lane);
      const bool visible = keys.VisibleIn(a, set, position, part).Contains(key);
      float weight = 0;
      if (__any_sync(kWholeWarp, visible)) {
        const float score = visible ? Finished(a, scores[l], set.Head(lane), key - position) : -INFINITY;
        const float top = fmaxf(lanes[l].max, WarpMax(score));
        const float shrink = expf(lanes[l].max - top);
        weight = visible ? expf(score - top) : 0.0f;
        lanes[l].max = top;
        lanes[l].sum = fmaf(lanes[l].sum, shrink, WarpSum(weight));
#pragma unroll
        for (int i = 0; i < kColumns; ++i) lanes[l].values[i] *= shrink;
      }
      room.weights[lane * kKeyTile + Lane()] = weight;
    }
  }

  // Adds the tile's values by their weights to the warp's first kCount lanes, in ascending order of positions.
  template <int kCount>
  __device__ static void AddValues(const Room& room, int dim, Lanes& lanes) {
    for (int t = 0; t < kKeyTile; t += 4) {
      float4 weights[kCount];
#pragma unroll
      for (int l = 0; l < kCount; ++l) {  // of lanes that are none too: their sums are never looked at
        weights[l] = *reinterpret_cast<const float4*>(room.weights + LaneOf(l) * kKeyTile + t);
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = ColumnOf(i);
        if (column >= dim) break;
        const float* values = room.tile + t * room.value_stride + column;
#pragma unroll
        for (int l = 0; l < kCount; ++l) {
          float* sum = &lanes[l].values[i];
          *sum = fmaf(weights[l].x, values[0], *sum);
          *sum = fmaf(weights[l].y, values[room.value_stride], *sum);
          *sum = fmaf(weights[l].z, values[2 * room.value_stride], *sum);
          *sum = fmaf(weights[l].w, values[3 * room.value_stride], *sum);
        }
      }
    }
  }
};

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_SIMT_CUH_
