// What a block of threads of attention_kernel.cuh works on: its lanes, their softmaxes, and its shared memory.
#ifndef BERTH_MODELS_KERNELS_CUDA_ATTENTION_LANES_CUH_
#define BERTH_MODELS_KERNELS_CUDA_ATTENTION_LANES_CUH_

#include "models/kernels/cuda/attention_tiles.cuh"

namespace berth::cuda {

using cpu::AttentionArgs;

inline constexpr int kLanesPerWarp = 4;
inline constexpr int kLanes = kAttentionWarps * kLanesPerWarp;

// A lane's softmax over some positions: the largest score, and of this thread's columns the sums of values, both
// relative to it.
template <int kColumns>
struct Softmax {
  float max = -INFINITY;
  float sum = 0;
  float values[kColumns] = {};
};

// Two softmaxes become one: the values of the first times `before`, and of the second, whose positions follow, times
// `after`. Written out as fused operations, so that whoever merges computes the same bits.
struct Merging {
  float max, sum;
  float before, after;

  __device__ Merging(float max_before, float sum_before, float max_after, float sum_after) {
    const bool is_empty = max_after == -INFINITY && sum_after == 0;
    max = is_empty ? max_before : fmaxf(max_before, max_after);
    before = is_empty ? 1.0f : expf(max_before - max);
    after = is_empty ? 0.0f : expf(max_after - max);
    sum = fmaf(sum_after, after, sum_before * before);
  }
  __device__ float operator()(float value_before, float value_after) const {
    return fmaf(value_after, after, value_before * before);
  }
};

// A launch of AttentionKernel.
struct AttentionLaunch {
  int64_t first_tile;
  int num_splits;  // blocks for each tile's keys; 0: one block walks through all
  int lane_chunks;
};

// One block's lanes. Lane l of warp w is number l * kAttentionWarps + w of the block's, so that few lanes are spread
// over the warps.
struct LaneSet {
  int row, kv_head;
  int first_position, first_token;  // of the tile's first query
  int group;                        // heads that share the KV head
  int first;                        // of the tile's lanes, which are query-major
  int count;                        // of the block's lanes
  Positions seen;                   // all that one of them sees, and maybe more

  // In decode of few heads the work of the other lanes is left out.
  __device__ bool HasOneLanePerWarp() const { return count <= kAttentionWarps; }
  __device__ int Position(int lane) const { return first_position + (first + lane) / group; }
  __device__ int64_t Token(int lane) const { return first_token + (first + lane) / group; }
  __device__ int Head(int lane) const { return kv_head * group + (first + lane) % group; }
};

// Of this block, but for what they see.
__device__ inline LaneSet LanesOf(const AttentionArgs& a, const AttentionLaunch& launch) {
  const int64_t tile = launch.first_tile + blockIdx.x;
  const cpu::Row& row = a.rows[a.tiles[2 * tile]];
  const int first_query = static_cast<int>(a.tiles[2 * tile + 1]);
  LaneSet set;
  set.row = static_cast<int>(a.tiles[2 * tile]);
  set.kv_head = static_cast<int>(blockIdx.y) / launch.lane_chunks;
  set.first_position = static_cast<int>(row.start) + first_query;
  set.first_token = static_cast<int>(row.first_token) + first_query;
  set.group = static_cast<int>(a.q_heads / a.kv.kv_heads);
  set.first = static_cast<int>(blockIdx.y) % launch.lane_chunks * kLanes;
  const int queries = min(static_cast<int>(cpu::kQueryTile), static_cast<int>(row.num_tokens) - first_query);
  set.count = min(queries * set.group - set.first, kLanes);
  return set;
}

// The block's shared memory.
struct AttentionRoom {
  int key_stride, value_stride;
  float* queries;  // [kLanes, key_stride], scaled
  float* weights;  // [kLanes, kKeyTile]
  float* tile;     // [kKeyTile, key_stride or value_stride]
  float* totals;   // [kLanes, value_stride]: sums of values over the splits so far

  __device__ explicit AttentionRoom(const AttentionArgs& a)
      : key_stride(TileStride(a.kv.key.dim)), value_stride(TileStride(a.kv.value.dim)) {
    queries = reinterpret_cast<float*>(shared_memory);
    weights = queries + kLanes * key_stride;
    tile = weights + kLanes * kKeyTile;
    totals = tile + kKeyTile * max(key_stride, value_stride);
  }
};

inline int64_t AttentionRoomBytes(const AttentionArgs& a, bool with_totals) {
  const int key_stride = TileStride(a.kv.key.dim);
  const int value_stride = TileStride(a.kv.value.dim);
  const int tile_stride = key_stride > value_stride ? key_stride : value_stride;
  const int floats = kLanes * (key_stride + kKeyTile + (with_totals ? value_stride : 0)) + kKeyTile * tile_stride;
  return floats * static_cast<int64_t>(sizeof(float));
}

__device__ inline float LoadAs(cpu::TypeIndex type, const void* p, int64_t i) {
  return type == cpu::kF32 ? Load(static_cast<const float*>(p) + i) : Load(static_cast<const BFloat16*>(p) + i);
}
__device__ inline void StoreAs(cpu::TypeIndex type, void* p, int64_t i, float value) {
  if (type == cpu::kF32) return Store(static_cast<float*>(p) + i, value);
  Store(static_cast<BFloat16*>(p) + i, value);
}

__device__ inline void LoadQueries(const AttentionArgs& a, cpu::TypeIndex type, const LaneSet& set,
                                   const AttentionRoom& room) {
  const int dim = static_cast<int>(a.kv.key.dim);
  for (int lane = WarpIndex(); lane < set.count; lane += kAttentionWarps) {
    const int64_t first = set.Token(lane) * a.query_stride + set.Head(lane) * dim;
    for (int i = Lane(); i < (dim + 3) / 4 * 4; i += kWarp) {
      room.queries[lane * room.key_stride + i] = i < dim ? LoadAs(type, a.query, first + i) * a.scale : 0.0f;
    }
  }
}

// A sink is a first score whose value is zero.
__device__ inline float FirstScore(const AttentionArgs& a, int head) {
  return a.sinks == nullptr ? -INFINITY : a.sinks[head];
}
__device__ inline float FirstSum(const AttentionArgs& a) { return a.sinks == nullptr ? 0.0f : 1.0f; }

// Where the softmax of a token's head over a split waits to be merged: largest score, sum, values.
__device__ inline float* PartialOf(const AttentionArgs& a, int64_t token, int head, int num_splits, int split) {
  return a.scratch + ((token * a.q_heads + head) * num_splits + split) * (a.kv.value.dim + 2);
}

template <int kColumns>
__device__ void StorePartials(const AttentionArgs& a, const LaneSet& set, int num_splits, int split,
                              const Softmax<kColumns>* lanes) {
  const int dim = static_cast<int>(a.kv.value.dim);
#pragma unroll
  for (int l = 0; l < kLanesPerWarp; ++l) {
    const int lane = l * kAttentionWarps + WarpIndex();
    if (lane >= set.count) break;
    float* partial = PartialOf(a, set.Token(lane), set.Head(lane), num_splits, split);
    if (Lane() == 0) {
      partial[0] = lanes[l].max;
      partial[1] = lanes[l].sum;
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = i * kWarp + Lane();
      if (column < dim) partial[2 + column] = lanes[l].values[i];
    }
  }
}

}  // namespace berth::cuda

#endif  // BERTH_MODELS_KERNELS_CUDA_ATTENTION_LANES_CUH_
