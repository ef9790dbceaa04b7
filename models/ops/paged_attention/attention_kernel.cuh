// Attention over tiles of keys, for decode and ragged prefill alike. Part of the .cu files that launch it.
//
// A block of threads takes some queries of a row, of the heads that share a KV head: up to MathPolicy::kLanes lanes, a
// lane being one head of one query. It walks over tiles of kKeyTile positions, which all its lanes share (the online
// softmax over tiles of Milakov and Gimelshein, 2018).
//
// Positions are cut into splits of kSplitTokens, each with a softmax of its own, which are then merged in ascending
// order. In decode the splits are shared out among blocks, and a second kernel merges; in prefill a block goes through
// all of them and merges as it goes. Tiles and splits begin at multiples of their size, so a query's sums do not depend
// on either.
//
// A class Keys, an argument of the kernel, says which keys a query sees and where they lie:
//   type                                the type of queries and results
//   kNumParts                           what a query sees is read in this many parts, one after the other
//   SeenBy(a, set)                      the LaneSet's `seen`; the other fields of `set` are there
//   PartialsOf(row, index)              where the row's results lie if keys are divided
//   VisibleIn(a, set, position, part)   of a part, for the query at `position`: neither border falls as that grows
//   FormatOf(a, part, is_key)           how the part's keys, or values, are stored
//   Find(a, set, part, is_key, position)  where that of the lanes' KV head lies
//
// A class MathPolicy (attention_simt.cuh, attention_mma.cuh) computes the products:
//   kLanes, kThreadLanes, kValues       lanes of a block, lanes that a thread has a part in, its sums of values of each
//   kMostColumns                        of the values that it is for
//   Lanes                               Softmax<kValues>[kThreadLanes]
//   LaneOf(l), ColumnOf(i), IsFirst()   which lane and column they are; whether the thread is a lane's first
//   Room, RoomBytes(a, with_totals)     the block's shared memory; `totals` [kLanes, value_stride] is of the kernel
//   LoadQueries(a, type, set, room)     before the first tile
//   AttendTile(a, keys, set, room, part, first, read, lanes)  adds a tile of a part; its positions `read` exist;
//                                       all threads take part
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_KERNEL_CUH_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_KERNEL_CUH_

#include "models/ops/paged_attention/attention_mma.cuh"
#include "models/ops/paged_attention/attention_simt.cuh"

namespace berth::ops::cuda {

inline constexpr int kSplit = static_cast<int>(kSplitTokens);

// Blocks of a launch that divides keys, about: enough to fill a GPU. A graph launches them all, whatever its rows see,
// and each takes more than one split where there are more.
inline constexpr int64_t kSplitBlocks = 1024;

// All that the block's lanes see of positions [begin, begin + kSplitTokens).
template <typename MathPolicy, typename Keys>
__device__ void AttendSplit(const AttentionArgs& a, const Keys& keys, const LaneSet& set,
                            const typename MathPolicy::Room& room, int begin, typename MathPolicy::Lanes& lanes) {
  for (int part = 0; part < Keys::kNumParts; ++part) {
    const Positions of_first = keys.VisibleIn(a, set, set.Position(0), part);
    const Positions of_last = keys.VisibleIn(a, set, set.Position(set.count - 1), part);
    // What is not read may hold anything.
    const Positions read = {max(of_first.first, begin), min(of_last.last, begin + kSplit)};
    for (int first = read.first / kKeyTile * kKeyTile; first < read.last; first += kKeyTile) {
      MathPolicy::AttendTile(a, keys, set, room, part, first, read, lanes);
    }
  }
}

// Leaves the softmaxes of one split in a.partials.
template <typename MathPolicy>
__device__ void StorePartials(const AttentionArgs& a, const LaneSet& set, const RowPartials& partials, int split,
                              const typename MathPolicy::Lanes& lanes) {
  const int dim = static_cast<int>(a.kv.value.dim);
#pragma unroll
  for (int l = 0; l < MathPolicy::kThreadLanes; ++l) {
    const int lane = MathPolicy::LaneOf(l);
    if (lane >= set.count) break;
    float* partial = partials.Of(a, (set.first + lane) / set.group, split, set.Head(lane));
    if (MathPolicy::IsFirst()) {
      partial[0] = lanes[l].max;
      partial[1] = lanes[l].sum;
    }
#pragma unroll
    for (int i = 0; i < MathPolicy::kValues; ++i) {
      const int column = MathPolicy::ColumnOf(i);
      if (column < dim) partial[2 + column] = lanes[l].values[i];
    }
  }
}

// One tile: blockIdx = (tile, KV head and chunk of lanes, block of the tile's keys). If keys are divided, it leaves the
// softmaxes of each key_blocks-th split in a.partials; else the result in a.out.
template <typename MathPolicy, typename Keys>
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionLaunch launch,
                    const __grid_constant__ Keys keys) {
  LaneSet set = LanesOf(a, launch, MathPolicy::kLanes);
  if (set.count <= 0) return;
  set.seen = keys.SeenBy(a, set);
  const bool divided = launch.key_blocks > 0;
  int begin = set.seen.first / kSplit * kSplit + static_cast<int>(blockIdx.z) * kSplit;
  if (divided && begin >= set.seen.last) return;
  const typename MathPolicy::Room room(a);
  MathPolicy::LoadQueries(a, keys.type, set, room);
  const int dim = static_cast<int>(a.kv.value.dim);
  float max[MathPolicy::kThreadLanes], sum[MathPolicy::kThreadLanes];
#pragma unroll
  for (int l = 0; l < MathPolicy::kThreadLanes; ++l) {
    const int lane = MathPolicy::LaneOf(l);
    max[l] = FirstScore(a, lane < set.count ? set.Head(lane) : 0);
    sum[l] = FirstSum(a);
    if (divided) continue;
#pragma unroll
    for (int i = 0; i < MathPolicy::kValues; ++i) {
      if (MathPolicy::ColumnOf(i) < dim) room.totals[lane * room.value_stride + MathPolicy::ColumnOf(i)] = 0;
    }
  }
  for (; begin < set.seen.last; begin += kSplit * (divided ? launch.key_blocks : 1)) {
    typename MathPolicy::Lanes lanes;
    AttendSplit<MathPolicy>(a, keys, set, room, begin, lanes);
    if (divided) {
      StorePartials<MathPolicy>(a, set, keys.PartialsOf(a.rows[set.row], set.row), begin / kSplit, lanes);
      continue;
    }
#pragma unroll
    for (int l = 0; l < MathPolicy::kThreadLanes; ++l) {
      const Merging merge(max[l], sum[l], lanes[l].max, lanes[l].sum);
      max[l] = merge.max;
      sum[l] = merge.sum;
      float* totals = room.totals + MathPolicy::LaneOf(l) * room.value_stride;
#pragma unroll
      for (int i = 0; i < MathPolicy::kValues; ++i) {
        const int column = MathPolicy::ColumnOf(i);
        if (column < dim) totals[column] = merge(totals[column], lanes[l].values[i]);
      }
    }
  }
  if (divided) return;
#pragma unroll
  for (int l = 0; l < MathPolicy::kThreadLanes; ++l) {
    const int lane = MathPolicy::LaneOf(l);
    if (lane >= set.count) break;
    const float inverse = 1.0f / sum[l];
    const int64_t first = (set.Token(lane) * a.q_heads + set.Head(lane)) * dim;
#pragma unroll
    for (int i = 0; i < MathPolicy::kValues; ++i) {
      const int column = MathPolicy::ColumnOf(i);
      if (column < dim) {
        StoreAs(keys.type, a.out, first + column, room.totals[lane * room.value_stride + column] * inverse);
      }
    }
  }
}

// The splits that a warp loads before it merges the first of them. Merging is a chain, but loading need not wait for
// it.
inline constexpr int kMergedAtOnce = 4;

// Merges the splits of a tile: a warp for each of a token's heads.
template <int kColumns, typename Keys>
__global__ void __launch_bounds__(kAttentionThreads)
    MergeKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ Keys keys) {
  const int index = static_cast<int>(a.tiles[2 * blockIdx.x]);
  const Row& row = a.rows[index];
  const int item = static_cast<int>(blockIdx.y) * kAttentionWarps + WarpIndex();
  const int q_heads = static_cast<int>(a.q_heads);
  const int query = item / q_heads, head = item % q_heads;
  if (query >= row.num_tokens) return;
  const int64_t token = row.first_token + query;
  const LaneSet set = {.row = index, .first_position = static_cast<int>(row.start) + query, .group = 1, .count = 1};
  const Positions seen = keys.SeenBy(a, set);
  const RowPartials partials = keys.PartialsOf(row, index);
  const int dim = static_cast<int>(a.kv.value.dim);
  Softmax<kColumns> total;
  total.max = FirstScore(a, head);
  total.sum = FirstSum(a);
  for (int first = seen.first / kSplit; first * kSplit < seen.last; first += kMergedAtOnce) {
    float max[kMergedAtOnce], sum[kMergedAtOnce], values[kMergedAtOnce][kColumns];
#pragma unroll
    for (int s = 0; s < kMergedAtOnce; ++s) {
      if ((first + s) * kSplit >= seen.last) break;
      const float* partial = partials.Of(a, query, first + s, head);
      max[s] = partial[0];
      sum[s] = partial[1];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = i * kWarp + Lane();
        values[s][i] = column < dim ? partial[2 + column] : 0.0f;
      }
    }
#pragma unroll
    for (int s = 0; s < kMergedAtOnce; ++s) {
      if ((first + s) * kSplit >= seen.last) break;
      const Merging merge(total.max, total.sum, max[s], sum[s]);
      total.max = merge.max;
      total.sum = merge.sum;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i * kWarp + Lane() < dim) total.values[i] = merge(total.values[i], values[s][i]);
      }
    }
  }
  const float inverse = 1.0f / total.sum;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = i * kWarp + Lane();
    if (column < dim) StoreAs(keys.type, a.out, (token * a.q_heads + head) * dim + column, total.values[i] * inverse);
  }
}

template <typename MathPolicy, typename Keys>
int LaunchWith(const AttentionArgs& a, const Keys& keys, const LaunchParams& params) {
  if (a.kv.value.dim > MathPolicy::kMostColumns) return kNotCovered;
  const SplitKv& split = params.split;
  AttentionLaunch launch = {};
  const int64_t group = a.q_heads / a.kv.kv_heads;
  const int64_t tiles = MathPolicy::kLanes / (kQueryTile * group);
  launch.tile_queries = static_cast<int>(kQueryTile * (tiles > 1 ? tiles : 1));
  const int64_t queries = params.longest_row < launch.tile_queries ? params.longest_row : launch.tile_queries;
  launch.lane_chunks = static_cast<int>(CeilDiv(queries * group, MathPolicy::kLanes));
  const int64_t heads = a.kv.kv_heads * launch.lane_chunks;
  if (split.num_splits > 0) {
    const int64_t blocks = kSplitBlocks / (split.num_tiles * heads);
    launch.key_blocks = static_cast<int>(blocks < 1 ? 1 : blocks < split.num_splits ? blocks : split.num_splits);
    int result =
        Launch(AttentionKernel<MathPolicy, Keys>, Grid(split.num_tiles, heads, launch.key_blocks), kAttentionThreads,
               MathPolicy::RoomBytes(a, /*with_totals=*/false), params.stream, a, launch, keys);
    if (result != kLaunched) return result;
    result = Launch(MergeKernel<MathPolicy::kMostColumns / kWarp, Keys>,
                    Grid(split.num_tiles, CeilDiv(split.tile_tokens * a.q_heads, kAttentionWarps)), kAttentionThreads,
                    0, params.stream, a, keys);
    if (result != kLaunched) return result;
  }
  launch.first_tile = split.num_splits > 0 ? split.num_tiles : 0;
  launch.key_blocks = 0;
  return Launch(AttentionKernel<MathPolicy, Keys>, Grid(params.num_tiles - launch.first_tile, heads), kAttentionThreads,
                MathPolicy::RoomBytes(a, /*with_totals=*/true), params.stream, a, launch, keys);
}

// By the first way that is for such values and finds its room on the device.
template <typename MathPolicy, typename... Others, typename Keys>
int LaunchFirst(const AttentionArgs& a, const Keys& keys, const LaunchParams& launch) {
  const int result = LaunchWith<MathPolicy>(a, keys, launch);
  if constexpr (sizeof...(Others) > 0) {
    if (result == kNotCovered) return LaunchFirst<Others...>(a, keys, launch);
  }
  return result;
}

// An entry's whole launch.
template <typename Keys>
int LaunchAttention(const AttentionArgs& a, const Keys& keys, const LaunchParams& launch) {
  if (keys.type == DType::kBFloat16 && a.kv.storage != DType::kInt4) {
    const int result = LaunchFirst<MmaMath<4>, MmaMath<8>, MmaMath<16>>(a, keys, launch);
    if (result != kNotCovered) return result;
  }
  return LaunchFirst<SimtMath<4>, SimtMath<8>, SimtMath<16>>(a, keys, launch);
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_ATTENTION_KERNEL_CUH_
