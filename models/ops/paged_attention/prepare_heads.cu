// New tokens' heads before attention: norms, rotations, and the way of keys and values into the arena. A warp takes a
// head of a token and keeps it in shared memory meanwhile.
#include "models/ops/paged_attention/write_kv.cuh"

namespace berth::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int64_t kMostDim = 1024;

// A warp's room for a head, in numbers: whole runs.
template <typename T>
__host__ __device__ inline int64_t RoomOf(int64_t dim) {
  return (dim + kRun<T> - 1) / kRun<T> * kRun<T>;
}

// Norms x, in shared memory, in the order of elementwise/cuda.cu.
template <typename T>
__device__ void NormHead(const HeadNorm& norm, int dim, T* x) {
  float v[kRun<T>];
  float sum = 0;
  for (int i = Lane() * kRun<T>; i < dim; i += kWarp * kRun<T>) {
    LoadRun(x + i, dim - i, /*aligned=*/true, v);
#pragma unroll
    for (int j = 0; j < kRun<T>; ++j) sum = fmaf(v[j], v[j], sum);
  }
  const float inverse = 1.0f / sqrtf(WarpSum(sum) / static_cast<float>(dim) + norm.eps);
  for (int i = Lane() * kRun<T>; i < dim; i += kWarp * kRun<T>) {
    LoadRun(x + i, dim - i, /*aligned=*/true, v);
#pragma unroll
    for (int j = 0; j < kRun<T>; ++j) {
      if (i + j < dim) v[j] = v[j] * inverse * norm.weight[i + j];
    }
    StoreRun(x + i, dim - i, /*aligned=*/true, v);
  }
  __syncwarp();
}

template <typename T>
__device__ void RotateHead(const PrepareHeadsArgs& a, int64_t token, T* x) {
  const int half = static_cast<int>(a.rotary_dim / 2);
  const float* cosine = a.cos + a.rotary_rows[token] * half;
  const float* sine = a.sin + a.rotary_rows[token] * half;
  for (int i = Lane(); i < half; i += kWarp) {
    const float x1 = Load(x + i);
    const float x2 = Load(x + half + i);
    Store(x + i, x1 * cosine[i] - x2 * sine[i]);
    Store(x + half + i, x2 * cosine[i] + x1 * sine[i]);
  }
  __syncwarp();
}

template <typename T>
__device__ void CopyHead(const T* from, int dim, bool from_aligned, bool to_aligned, T* to) {
  float v[kRun<T>];
  for (int i = Lane() * kRun<T>; i < dim; i += kWarp * kRun<T>) {
    LoadRun(from + i, dim - i, from_aligned, v);
    StoreRun(to + i, dim - i, to_aligned, v);
  }
}

// The grid's dimensions: tiles; the heads of queries, keys and values, kWarps a block; a tile's tokens.
//
// aligned: all heads in a.qkv begin on 16 bytes. arena_aligned: and so do their places in the arena.
template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp)
    PrepareHeadsKernel(const __grid_constant__ PrepareHeadsArgs a, const int64_t* tiles, bool aligned,
                       bool arena_aligned) {
  const int row_index = static_cast<int>(tiles[2 * blockIdx.x]);
  const Row row = a.rows[row_index];
  const int64_t i = tiles[2 * blockIdx.x + 1] + blockIdx.z;
  const int head = static_cast<int>(blockIdx.y) * kWarps + WarpIndex();
  const int q_heads = static_cast<int>(a.q_heads);
  const int kv_heads = static_cast<int>(a.kv_heads);
  if (i >= row.num_tokens || head >= q_heads + 2 * kv_heads) return;
  const int64_t token = row.first_token + i;
  const int dim = static_cast<int>(a.head_dim);
  const bool is_query = head < q_heads;
  const bool is_value = head >= q_heads + kv_heads;

  T* x = static_cast<T*>(a.qkv) + token * a.stride + static_cast<int64_t>(head) * dim;
  T* room = reinterpret_cast<T*>(shared_memory) + WarpIndex() * RoomOf<T>(dim);
  CopyHead(x, dim, aligned, /*to_aligned=*/true, room);
  __syncwarp();
  const HeadNorm& norm = is_query ? a.q_norm : (is_value ? a.v_norm : a.k_norm);
  const bool norm_is_last = a.norms_after_rotary && !is_value;
  if (norm.weight != nullptr && !norm_is_last) NormHead(norm, dim, room);
  if (a.rotary_dim > 0 && !is_value) RotateHead(a, token, room);
  if (norm.weight != nullptr && norm_is_last) NormHead(norm, dim, room);
  if (is_query) return CopyHead(room, dim, /*from_aligned=*/true, aligned, x);

  const int kv_head = head - q_heads - (is_value ? kv_heads : 0);
  const int position = static_cast<int>(row.start + i);
  WriteHead(room, a.kv, is_value ? a.kv.value : a.kv.key, row_index, kv_head, position, arena_aligned);
  if (!a.has_recent) return;
  WriteHead(room, a.recent, is_value ? a.recent.value : a.recent.key, row_index, kv_head, position, arena_aligned);
}

// Whether whole runs of keys and values lie on 16 bytes in the arena.
template <typename T>
bool AreAlignedIn(const KvLayout& kv) {
  return IsAligned<T>(kv, kv.key) && IsAligned<T>(kv, kv.value);
}

}  // namespace

template <typename T>
int PrepareHeads(const PrepareHeadsArgs& a, const LaunchParams& launch) {
  if (a.head_dim > kMostDim) return kNotCovered;
  const bool aligned = AreAligned<T>(a.qkv, a.stride) && AreAligned<T>(nullptr, a.head_dim);
  const bool arena_aligned = (a.kv_heads == 0 || AreAlignedIn<T>(a.kv)) && (!a.has_recent || AreAlignedIn<T>(a.recent));
  const int64_t blocks_of_heads = CeilDiv(a.q_heads + 2 * a.kv_heads, kWarps);
  const int64_t tokens = launch.longest_row < kQueryTile ? launch.longest_row : kQueryTile;
  const int64_t room = kWarps * RoomOf<T>(a.head_dim) * static_cast<int64_t>(sizeof(T));
  return Launch(PrepareHeadsKernel<T>, Grid(launch.num_tiles, blocks_of_heads, tokens), kWarps * kWarp, room,
                launch.stream, a, launch.tiles, aligned, arena_aligned);
}

BERTH_CUDA_ENTRY(PrepareHeads, PrepareHeadsArgs)

}  // namespace berth::ops::cuda
