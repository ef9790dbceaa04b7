// New keys and values into the arena: a warp for each token's head.
#include "models/ops/paged_attention/write_kv.cuh"

namespace berth::ops::cuda {
namespace {

constexpr int kThreads = kQueryTile * kWarp;

// The grid's second dimension counts the heads of the keys, then those of the values.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    WriteKvKernel(const __grid_constant__ WriteKvArgs a, const int64_t* tiles, bool key_aligned, bool value_aligned) {
  const int row_index = static_cast<int>(tiles[2 * blockIdx.x]);
  const Row row = a.rows[row_index];
  const int64_t i = tiles[2 * blockIdx.x + 1] + WarpIndex();
  if (i >= row.num_tokens) return;
  const int heads = static_cast<int>(a.kv.kv_heads);
  const bool is_key = static_cast<int>(blockIdx.y) < heads;
  const int head = static_cast<int>(blockIdx.y) - (is_key ? 0 : heads);
  const KvPlace& place = is_key ? a.kv.key : a.kv.value;
  const int dim = static_cast<int>(place.dim);
  const T* x = static_cast<const T*>(is_key ? a.key : a.value) +
               (row.first_token + i) * (is_key ? a.key_stride : a.value_stride) + head * dim;
  WriteHead(x, a.kv, place, row_index, head, static_cast<int>(row.start + i), is_key ? key_aligned : value_aligned);
}

}  // namespace

template <typename T>
int WriteKv(const WriteKvArgs& a, const LaunchParams& launch) {
  const bool key_aligned = AreAligned<T>(a.key, a.key_stride) && IsAligned<T>(a.kv, a.kv.key);
  const bool value_aligned = AreAligned<T>(a.value, a.value_stride) && IsAligned<T>(a.kv, a.kv.value);
  return Launch(WriteKvKernel<T>, Grid(launch.num_tiles, 2 * a.kv.kv_heads), kThreads, 0, launch.stream, a,
                launch.tiles, key_aligned, value_aligned);
}

BERTH_CUDA_ENTRY(WriteKv, WriteKvArgs)

}  // namespace berth::ops::cuda
