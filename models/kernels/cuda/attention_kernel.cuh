// Attention over tiles of keys, for decode and ragged prefill alike. Part of the .cu files that launch it.
//
// A block of threads takes some queries of a row, of the heads that share a KV head: up to kLanes lanes, a lane being
// one head of one query. It walks over tiles of kKeyTile positions, which all its lanes share: keys into shared memory,
// a score for each thread of the lane's warp, values into shared memory, and sums in registers, each thread its columns
// (the online softmax over tiles of Milakov and Gimelshein, 2018).
//
// Positions are cut into splits of kSplitTokens, each with a softmax of its own, which are then merged in ascending
// order. In decode a block has one split, and a second kernel merges; in prefill a block goes through all of them and
// merges as it goes. Tiles and splits begin at multiples of their size, so a query's sums do not depend on either.
//
// Which keys a query sees, and where they lie, says a class Keys, which is an argument of the kernel:
//   type                                the type of queries and results
//   kNumParts                           what a query sees is read in so many parts, one after the other
//   SeenBy(a, set)                      the LaneSet's `seen`; the other fields of `set` are there
//   VisibleIn(a, set, position, part)   of a part, for the query at `position`: neither border falls as that grows
//   FormatOf(a, part, is_key)           how the part's keys, or values, are stored
//   Find(a, set, part, is_key, position)  where that of the lanes' KV head lies
#ifndef BERTH_MODELS_KERNELS_CUDA_ATTENTION_KERNEL_CUH_
#define BERTH_MODELS_KERNELS_CUDA_ATTENTION_KERNEL_CUH_

#include "models/kernels/cuda/attention_lanes.cuh"

namespace berth::cuda {

inline constexpr int kSplit = static_cast<int>(kSplitTokens);

// The scores of this thread's key and the warp's first kCount lanes, the sums in ascending order of the dimensions.
template <int kCount>
__device__ inline void Dot(const AttentionRoom& room, int dim, float* scores) {
  const float4* key = reinterpret_cast<const float4*>(room.tile + Lane() * room.key_stride);
  const float4* queries = reinterpret_cast<const float4*>(room.queries);
#pragma unroll
  for (int l = 0; l < kCount; ++l) scores[l] = 0;
  for (int i = 0; i < (dim + 3) / 4; ++i) {
    const float4 k = key[i];
#pragma unroll
    for (int l = 0; l < kCount; ++l) {  // queries of lanes that are none are never looked at
      const float4 q = queries[(l * kAttentionWarps + WarpIndex()) * (room.key_stride / 4) + i];
      scores[l] = fmaf(q.x, k.x, scores[l]);
      scores[l] = fmaf(q.y, k.y, scores[l]);
      scores[l] = fmaf(q.z, k.z, scores[l]);
      scores[l] = fmaf(q.w, k.w, scores[l]);
    }
  }
}

__device__ inline float Finished(const AttentionArgs& a, float score, int head, int distance) {
  if (a.softcap != 0) score = a.softcap * tanhf(score / a.softcap);
  const int reach = static_cast<int>(a.bias_reach);
  if (a.bias != nullptr) score += a.bias[head * (2 * reach + 1) + reach + max(-reach, min(distance, reach))];
  return score;
}

// Scores of the tile's keys into weights relative to the lanes' largest score so far, which they may raise.
template <int kColumns, typename Keys>
__device__ void WeighKeys(const AttentionArgs& a, const Keys& keys, const LaneSet& set, const AttentionRoom& room,
                          int part, int first, Softmax<kColumns>* lanes) {
  float scores[kLanesPerWarp];
  const int dim = static_cast<int>(a.kv.key.dim);
  if (set.HasOneLanePerWarp()) {
    Dot<1>(room, dim, scores);
  } else {
    Dot<kLanesPerWarp>(room, dim, scores);
  }
  const int key = first + Lane();
#pragma unroll
  for (int l = 0; l < kLanesPerWarp; ++l) {
    const int lane = l * kAttentionWarps + WarpIndex();
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
template <int kCount, int kColumns>
__device__ void AddValues(const AttentionRoom& room, int dim, Softmax<kColumns>* lanes) {
  for (int t = 0; t < kKeyTile; t += 4) {
    float4 weights[kCount];
#pragma unroll
    for (int l = 0; l < kCount; ++l) {  // of lanes that are none too: their sums are never looked at
      const int lane = l * kAttentionWarps + WarpIndex();
      weights[l] = *reinterpret_cast<const float4*>(room.weights + lane * kKeyTile + t);
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = i * kWarp + Lane();
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

// All that the block's lanes see of positions [begin, begin + kSplitTokens).
template <int kColumns, typename Keys>
__device__ void AttendSplit(const AttentionArgs& a, const Keys& keys, const LaneSet& set, const AttentionRoom& room,
                            int begin, Softmax<kColumns>* lanes) {
  for (int part = 0; part < Keys::kNumParts; ++part) {
    const Positions of_first = keys.VisibleIn(a, set, set.Position(0), part);
    const Positions of_last = keys.VisibleIn(a, set, set.Position(set.count - 1), part);
    // What is not read may hold anything.
    const Positions read = {max(of_first.first, begin), min(of_last.last, begin + kSplit)};
    for (int first = read.first / kKeyTile * kKeyTile; first < read.last; first += kKeyTile) {
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
        } else if (set.HasOneLanePerWarp()) {
          AddValues<1>(room, static_cast<int>(a.kv.value.dim), lanes);
        } else {
          AddValues<kLanesPerWarp>(room, static_cast<int>(a.kv.value.dim), lanes);
        }
      }
    }
  }
}

// One tile: blockIdx = (tile, KV head and chunk of lanes, split). Of one split it leaves the softmax in the scratch, of
// all splits the result.
template <int kColumns, typename Keys>
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionLaunch launch,
                    const __grid_constant__ Keys keys) {
  LaneSet set = LanesOf(a, launch);
  if (set.count <= 0) return;
  set.seen = keys.SeenBy(a, set);
  const AttentionRoom room(a);
  LoadQueries(a, keys.type, set, room);
  const int dim = static_cast<int>(a.kv.value.dim);
  float max[kLanesPerWarp], sum[kLanesPerWarp];
#pragma unroll
  for (int l = 0; l < kLanesPerWarp; ++l) {
    const int lane = l * kAttentionWarps + WarpIndex();
    max[l] = FirstScore(a, lane < set.count ? set.Head(lane) : 0);
    sum[l] = FirstSum(a);
    if (launch.num_splits > 0) continue;
    for (int column = Lane(); column < dim; column += kWarp) room.totals[lane * room.value_stride + column] = 0;
  }
  const int split = static_cast<int>(blockIdx.z);
  int begin = launch.num_splits > 0 ? split * kSplit : set.seen.first / kSplit * kSplit;
  for (; begin < set.seen.last || launch.num_splits > 0; begin += kSplit) {
    Softmax<kColumns> lanes[kLanesPerWarp];
    AttendSplit(a, keys, set, room, begin, lanes);
    if (launch.num_splits > 0) return StorePartials(a, set, launch.num_splits, split, lanes);
#pragma unroll
    for (int l = 0; l < kLanesPerWarp; ++l) {
      const Merging merge(max[l], sum[l], lanes[l].max, lanes[l].sum);
      max[l] = merge.max;
      sum[l] = merge.sum;
      float* totals = room.totals + (l * kAttentionWarps + WarpIndex()) * room.value_stride;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = i * kWarp + Lane();
        if (column < dim) totals[column] = merge(totals[column], lanes[l].values[i]);
      }
    }
  }
#pragma unroll
  for (int l = 0; l < kLanesPerWarp; ++l) {
    const int lane = l * kAttentionWarps + WarpIndex();
    if (lane >= set.count) break;
    const float inverse = 1.0f / sum[l];
    const int64_t first = (set.Token(lane) * a.q_heads + set.Head(lane)) * dim;
    for (int column = Lane(); column < dim; column += kWarp) {
      StoreAs(keys.type, a.out, first + column, room.totals[lane * room.value_stride + column] * inverse);
    }
  }
}

// Merges the splits: a warp for each of a token's heads. Static: a kernel of its own in each file that launches it.
template <int kColumns>
static __global__ void __launch_bounds__(kAttentionThreads)
    MergeKernel(const __grid_constant__ AttentionArgs a, cpu::TypeIndex type, int num_splits) {
  const int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y) * kAttentionWarps + WarpIndex();
  if (head >= a.q_heads) return;
  const int dim = static_cast<int>(a.kv.value.dim);
  Softmax<kColumns> total;
  total.max = FirstScore(a, head);
  total.sum = FirstSum(a);
  for (int split = 0; split < num_splits; ++split) {
    const float* partial = PartialOf(a, token, head, num_splits, split);
    const Merging merge(total.max, total.sum, partial[0], partial[1]);
    total.max = merge.max;
    total.sum = merge.sum;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = i * kWarp + Lane();
      if (column < dim) total.values[i] = merge(total.values[i], partial[2 + column]);
    }
  }
  const float inverse = 1.0f / total.sum;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = i * kWarp + Lane();
    if (column < dim) StoreAs(type, a.out, (token * a.q_heads + head) * dim + column, total.values[i] * inverse);
  }
}

template <int kColumns, typename Keys>
int LaunchColumns(const AttentionArgs& a, const Keys& keys, const SplitKv& split, const Work& work) {
  AttentionLaunch launch = {};
  const int64_t queries = work.longest_row < cpu::kQueryTile ? work.longest_row : cpu::kQueryTile;  // of a tile
  launch.lane_chunks = static_cast<int>(CeilDiv(queries * (a.q_heads / a.kv.kv_heads), kLanes));
  const int64_t heads = a.kv.kv_heads * launch.lane_chunks;
  if (split.num_splits > 0) {
    launch.num_splits = static_cast<int>(split.num_splits);
    int result = Launch(AttentionKernel<kColumns, Keys>, Grid(split.num_tiles, heads, split.num_splits),
                        kAttentionThreads, AttentionRoomBytes(a, /*with_totals=*/false), work.stream, a, launch, keys);
    if (result != kLaunched) return result;
    result = Launch(MergeKernel<kColumns>, Grid(split.num_tokens, CeilDiv(a.q_heads, kAttentionWarps)),
                    kAttentionThreads, 0, work.stream, a, keys.type, launch.num_splits);
    if (result != kLaunched) return result;
  }
  launch.first_tile = split.num_splits > 0 ? split.num_tiles : 0;
  launch.num_splits = 0;
  return Launch(AttentionKernel<kColumns, Keys>, Grid(work.num_tiles - launch.first_tile, heads), kAttentionThreads,
                AttentionRoomBytes(a, /*with_totals=*/true), work.stream, a, launch, keys);
}

// An entry's whole work.
template <typename Keys>
int LaunchAttention(const AttentionArgs& a, const Keys& keys, const SplitKv& split, const Work& work) {
  const int64_t columns = CeilDiv(a.kv.value.dim, kWarp);
  if (columns <= 4) return LaunchColumns<4>(a, keys, split, work);
  if (columns <= 8) return LaunchColumns<8>(a, keys, split, work);
  if (columns <= 16) return LaunchColumns<16>(a, keys, split, work);
  return kNotCovered;
}

}  // namespace berth::cuda

#endif  // BERTH_MODELS_KERNELS_CUDA_ATTENTION_KERNEL_CUH_
