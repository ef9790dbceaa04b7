// What a block of threads of attention_kernel.cuh works on, whichever way: its lanes, their softmaxes, and tiles of
// positions.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_STATE_CUH_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_STATE_CUH_

#include "models/ops/paged_attention/kv.cuh"

namespace berth::ops::cuda {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = kAttentionThreads / kWarp;
inline constexpr int kKeyTile = kWarp;  // positions of a tile, which begins at a multiple of them: a thread each

// Positions [first, last).
struct Positions {
  int first, last;

  __device__ bool Contains(int position) const { return position >= first && position < last; }
};

// How the numbers of a token's key, or value, are stored.
struct TileFormat {
  DType storage;
  int dim;
  bool aligned;  // whole runs lie on 16 bytes, of int8 on 8
};

// Thread t of each warp finds where token t lies; the others ask it.
__device__ inline TokenPlace PlaceOfToken(const TokenPlace& own, int token) {
  const uint64_t data = __shfl_sync(kWholeWarp, reinterpret_cast<uint64_t>(own.data), token);
  const uint64_t scales = __shfl_sync(kWholeWarp, reinterpret_cast<uint64_t>(own.scales), token);
  return {reinterpret_cast<char*>(data), reinterpret_cast<BFloat16*>(scales)};
}

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
  int tile_queries;  // of a block: kQueryTile or several times that; of the tiles in between nothing is done
  int key_blocks;    // for each tile's keys, which are then divided; 0: one block walks through all
  int lane_chunks;
};

// One block's lanes, which are query-major.
struct LaneSet {
  int row, kv_head;
  int first_position, first_token;  // of the tile's first query
  int group;                        // heads that share the KV head
  int first;                        // of the tile's lanes
  int count;                        // of the block's lanes
  Positions seen;                   // all that one of them sees, and maybe more

  __device__ int Position(int lane) const { return first_position + (first + lane) / group; }
  __device__ int64_t Token(int lane) const { return first_token + (first + lane) / group; }
  __device__ int Head(int lane) const { return kv_head * group + (first + lane) % group; }
};

// The lanes of this block, at most `most`, without `seen`.
__device__ inline LaneSet LanesOf(const AttentionArgs& a, const AttentionLaunch& launch, int most) {
  const int64_t tile = launch.first_tile + blockIdx.x;
  const Row& row = a.rows[a.tiles[2 * tile]];
  const int first_query = static_cast<int>(a.tiles[2 * tile + 1]);
  LaneSet set;
  set.row = static_cast<int>(a.tiles[2 * tile]);
  set.kv_head = static_cast<int>(blockIdx.y) / launch.lane_chunks;
  set.first_position = static_cast<int>(row.start) + first_query;
  set.first_token = static_cast<int>(row.first_token) + first_query;
  set.group = static_cast<int>(a.q_heads / a.kv.kv_heads);
  set.first = static_cast<int>(blockIdx.y) % launch.lane_chunks * most;
  const int queries = min(launch.tile_queries, static_cast<int>(row.num_tokens) - first_query);
  set.count = first_query % launch.tile_queries == 0 ? min(queries * set.group - set.first, most) : 0;
  return set;
}

__device__ inline float Finished(const AttentionArgs& a, float score, int head, int distance) {
  if (a.softcap != 0) score = a.softcap * tanhf(score / a.softcap);
  const int reach = static_cast<int>(a.bias_reach);
  if (a.bias != nullptr) score += a.bias[head * (2 * reach + 1) + reach + max(-reach, min(distance, reach))];
  return score;
}

__device__ inline float LoadAs(DType type, const void* p, int64_t i) {
  return type == DType::kFloat32 ? Load(static_cast<const float*>(p) + i) : Load(static_cast<const BFloat16*>(p) + i);
}
__device__ inline void StoreAs(DType type, void* p, int64_t i, float value) {
  if (type == DType::kFloat32) return Store(static_cast<float*>(p) + i, value);
  Store(static_cast<BFloat16*>(p) + i, value);
}

// A sink is a first score whose value is zero.
__device__ inline float FirstScore(const AttentionArgs& a, int head) {
  return a.sinks == nullptr ? -INFINITY : a.sinks[head];
}
__device__ inline float FirstSum(const AttentionArgs& a) { return a.sinks == nullptr ? 0.0f : 1.0f; }

__device__ inline int SplitsOf(int64_t keys) { return static_cast<int>((keys + kSplitTokens - 1) / kSplitTokens); }

// Where a row's results for divided keys lie: for each of its tokens one of each split.
struct RowPartials {
  int64_t first;
  int num_splits;  // parts of the row's keys

  // The softmax of a head over a split, until it is merged: largest score, sum, values.
  __device__ float* Of(const AttentionArgs& a, int query, int split, int head) const {
    const int64_t partial = first + static_cast<int64_t>(query) * num_splits + split;
    return a.partials + (partial * a.q_heads + head) * (a.kv.value.dim + 2);
  }
};

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_STATE_CUH_
