// Causal attention over the blocks of the arena, for decode and ragged prefill alike.
//
// A block of threads takes some queries of a row, of the heads that share a KV head: up to kLanes lanes, a lane being
// one head of one query. It walks over tiles of kKeyTile positions, which all its lanes share: keys into shared memory,
// a score for each thread of the lane's warp, values into shared memory, and sums in registers, each thread its columns
// (the online softmax over tiles of Milakov and Gimelshein, 2018).
//
// Positions are cut into splits of kSplitTokens, each with a softmax of its own, which are then merged in ascending
// order. In decode a block has one split, and a second kernel merges; in prefill a block goes through all of them and
// merges as it goes. Tiles and splits begin at multiples of their size, so a query's sums do not depend on either.
#include "models/kernels/cuda/attention_tiles.cuh"

namespace berth::cuda {
namespace {

using cpu::AttentionArgs;
using cpu::KvLayout;

constexpr int kSplit = static_cast<int>(kSplitTokens);
constexpr int kLanesPerWarp = 4;
constexpr int kLanes = kAttentionWarps * kLanesPerWarp;

// What a query sees is read in this order: the sinks that its window has left, then the window or chunk from a.kv, then
// its newest tokens from a.recent.
enum Part { kSinks, kOlder, kRecent, kNumParts };

// What a query at `position` sees in its window or chunk.
__device__ inline Positions Visible(const AttentionArgs& a, int position) {
  const int chunk = static_cast<int>(a.chunk);
  const int in_chunk = chunk > 0 ? position - position % chunk : 0;
  const int in_window = a.window > 0 ? max(0, position - static_cast<int>(a.window) + 1) : 0;
  return {max(in_chunk, in_window), position + 1};
}

// The part's positions for a query at `position`.
__device__ inline Positions VisibleIn(const AttentionArgs& a, int position, int part) {
  const Positions all = Visible(a, position);
  if (part == kSinks) return {0, min(static_cast<int>(a.sink_tokens), all.first)};
  if (a.recent_tokens == 0) return part == kOlder ? all : Positions{0, 0};
  const int border = max(all.last - static_cast<int>(a.recent_tokens), all.first);
  return part == kRecent ? Positions{border, all.last} : Positions{all.first, border};
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

struct AttentionLaunch {
  int64_t first_tile;
  int num_splits;  // blocks for each tile's keys; 0: one block walks through all
  int lane_chunks;
  cpu::TypeIndex type;
  bool key_aligned, value_aligned, recent_aligned;
};

// One block's lanes. Lane l of warp w is number l * kAttentionWarps + w of the block's, so that few lanes are spread
// over the warps.
struct LaneSet {
  int row, kv_head;
  int first_position, first_token;  // of the tile's first query
  int group;                        // heads that share the KV head
  int first;                        // of the tile's lanes, which are query-major
  int count;                        // of the block's lanes

  // In decode of few heads the work of the other lanes is left out.
  __device__ bool HasOneLanePerWarp() const { return count <= kAttentionWarps; }
  __device__ int Position(int lane) const { return first_position + (first + lane) / group; }
  __device__ int64_t Token(int lane) const { return first_token + (first + lane) / group; }
  __device__ int Head(int lane) const { return kv_head * group + (first + lane) % group; }
};

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

int64_t AttentionRoomBytes(const AttentionArgs& a, bool with_totals) {
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
  if (a.bias != nullptr) score += a.bias[head * (2 * reach + 1) + reach + max(distance, -reach)];
  return score;
}

// Scores of the tile's keys into weights relative to the lanes' largest score so far, which they may raise.
template <int kColumns>
__device__ void WeighKeys(const AttentionArgs& a, const LaneSet& set, const AttentionRoom& room, int part, int first,
                          Softmax<kColumns>* lanes) {
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
    const bool visible = VisibleIn(a, position, part).Contains(key);
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
template <int kColumns>
__device__ void AttendSplit(const AttentionArgs& a, const AttentionLaunch& launch, const LaneSet& set,
                            const AttentionRoom& room, int begin, Softmax<kColumns>* lanes) {
  for (int part = kSinks; part < kNumParts; ++part) {
    const Positions of_first = VisibleIn(a, set.Position(0), part);
    const Positions of_last = VisibleIn(a, set.Position(set.count - 1), part);
    const Positions read = {max(of_first.first, begin), min(of_last.last, begin + kSplit)};
    const KvLayout& kv = part == kRecent ? a.recent : a.kv;
    const bool key_aligned = part == kRecent ? launch.recent_aligned : launch.key_aligned;
    const bool value_aligned = part == kRecent ? launch.recent_aligned : launch.value_aligned;
    for (int first = read.first / kKeyTile * kKeyTile; first < read.last; first += kKeyTile) {
#pragma unroll 1  // one copy of the loader
      for (int pass = 0; pass < 2; ++pass) {
        const bool is_key = pass == 0;
        const TileSource source = {.kv = &kv,
                                   .place = is_key ? &kv.key : &kv.value,
                                   .row = set.row,
                                   .head = set.kv_head,
                                   .first = first,
                                   .read = read,
                                   .type = launch.type,
                                   .aligned = is_key ? key_aligned : value_aligned};
        __syncthreads();  // what was in the tile has been read
        LoadTile(source, is_key ? room.key_stride : room.value_stride, room.tile);
        __syncthreads();
        if (is_key) {
          WeighKeys(a, set, room, part, first, lanes);
        } else if (set.HasOneLanePerWarp()) {
          AddValues<1>(room, static_cast<int>(kv.value.dim), lanes);
        } else {
          AddValues<kLanesPerWarp>(room, static_cast<int>(kv.value.dim), lanes);
        }
      }
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
__device__ void StorePartials(const AttentionArgs& a, const AttentionLaunch& launch, const LaneSet& set, int split,
                              const Softmax<kColumns>* lanes) {
  const int dim = static_cast<int>(a.kv.value.dim);
#pragma unroll
  for (int l = 0; l < kLanesPerWarp; ++l) {
    const int lane = l * kAttentionWarps + WarpIndex();
    if (lane >= set.count) break;
    float* partial = PartialOf(a, set.Token(lane), set.Head(lane), launch.num_splits, split);
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

// One tile: blockIdx = (tile, KV head and chunk of lanes, split). Of one split it leaves the softmax in the scratch, of
// all splits the result.
template <int kColumns>
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionLaunch launch) {
  const LaneSet set = LanesOf(a, launch);
  if (set.count <= 0) return;
  const AttentionRoom room(a);
  LoadQueries(a, launch.type, set, room);
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
  const int oldest = a.sink_tokens > 0 ? 0 : Visible(a, set.Position(0)).first;
  const int newest = set.Position(set.count - 1);
  int begin = launch.num_splits > 0 ? static_cast<int>(blockIdx.z) * kSplit : oldest / kSplit * kSplit;
  for (; begin <= newest || launch.num_splits > 0; begin += kSplit) {
    Softmax<kColumns> lanes[kLanesPerWarp];
    AttendSplit(a, launch, set, room, begin, lanes);
    if (launch.num_splits > 0) return StorePartials(a, launch, set, static_cast<int>(blockIdx.z), lanes);
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
      StoreAs(launch.type, a.out, first + column, room.totals[lane * room.value_stride + column] * inverse);
    }
  }
}

// Merges the splits: a warp for each of a token's heads.
template <int kColumns>
__global__ void __launch_bounds__(kAttentionThreads)
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

template <typename T>
AttentionLaunch LaunchOf(const AttentionArgs& a) {
  AttentionLaunch launch = {};
  launch.lane_chunks = static_cast<int>(CeilDiv(cpu::kQueryTile * (a.q_heads / a.kv.kv_heads), kLanes));
  launch.type = kTypeOf<T>;
  // Of int8, runs of eight bytes.
  const bool is_plain = a.kv.storage == cpu::KvStorage::kPlain;
  launch.key_aligned = is_plain ? IsAligned<T>(a.kv, a.kv.key) : a.kv.key.dim % 8 == 0;
  launch.value_aligned = is_plain ? IsAligned<T>(a.kv, a.kv.value) : a.kv.value.dim % 8 == 0;
  launch.recent_aligned = IsAligned<T>(a.recent, a.recent.key) && IsAligned<T>(a.recent, a.recent.value);
  return launch;
}

template <int kColumns>
int LaunchAttention(const AttentionArgs& a, AttentionLaunch launch, const SplitKv& split, const Work& work) {
  const int64_t heads = a.kv.kv_heads * launch.lane_chunks;
  if (split.num_splits > 0) {
    launch.num_splits = static_cast<int>(split.num_splits);
    int result = Launch(AttentionKernel<kColumns>, Grid(split.num_tiles, heads, split.num_splits), kAttentionThreads,
                        AttentionRoomBytes(a, /*with_totals=*/false), work.stream, a, launch);
    if (result != kLaunched) return result;
    result = Launch(MergeKernel<kColumns>, Grid(split.num_tokens, CeilDiv(a.q_heads, kAttentionWarps)),
                    kAttentionThreads, 0, work.stream, a, launch.type, launch.num_splits);
    if (result != kLaunched) return result;
  }
  launch.first_tile = split.num_splits > 0 ? split.num_tiles : 0;
  launch.num_splits = 0;
  return Launch(AttentionKernel<kColumns>, Grid(work.num_tiles - launch.first_tile, heads), kAttentionThreads,
                AttentionRoomBytes(a, /*with_totals=*/true), work.stream, a, launch);
}

}  // namespace

template <typename T>
int Attention(const AttentionArgs& a, const SplitKv& split, const Work& work) {
  const AttentionLaunch launch = LaunchOf<T>(a);
  const int64_t columns = CeilDiv(a.kv.value.dim, kWarp);
  if (columns <= 4) return LaunchAttention<4>(a, launch, split, work);
  if (columns <= 8) return LaunchAttention<8>(a, launch, split, work);
  if (columns <= 16) return LaunchAttention<16>(a, launch, split, work);
  return kNotCovered;
}

template int Attention<float>(const AttentionArgs&, const SplitKv&, const Work&);
template int Attention<BFloat16>(const AttentionArgs&, const SplitKv&, const Work&);

}  // namespace berth::cuda
