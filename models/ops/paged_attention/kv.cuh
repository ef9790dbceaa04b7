// Where a token's keys and values lie in the arena. Only for .cu files; see paged_attention_args.h for the layout.
#ifndef BERTH_MODELS_OPS_PAGED_ATTENTION_KV_CUH_
#define BERTH_MODELS_OPS_PAGED_ATTENTION_KV_CUH_

#include "models/kernels/cuda/device.cuh"
#include "models/ops/paged_attention/paged_attention_args.h"

namespace berth::ops::cuda {

// One head's key, or value, of one token. A null `data`: no token.
struct TokenPlace {
  char* data;
  BFloat16* scales;  // of no meaning in plain storage
};

__device__ inline int Int4Bytes(int dim) { return (dim + 1) / 2; }
__device__ inline int Int4Groups(int dim) {
  constexpr int kGroup = static_cast<int>(kInt4Group);
  return (dim + kGroup - 1) / kGroup;
}

// Positions fit into 32 bits, where a division is short.
__device__ inline TokenPlace PlaceOf(const KvLayout& kv, const KvPlace& place, int row, int head, int position) {
  const int block_tokens = static_cast<int>(kv.block_tokens);
  const int block = position / block_tokens;
  const int slot = position - block * block_tokens;
  const Blocks& blocks = kv.blocks[row];
  char* unit = kv.arena + blocks.offsets[block < blocks.sink_blocks ? block : block - blocks.expired_blocks];
  const int64_t token = static_cast<int64_t>(head) * block_tokens + slot;
  const int dim = static_cast<int>(place.dim);
  BFloat16* scales = reinterpret_cast<BFloat16*>(unit + place.scale_offset);
  switch (kv.storage) {
    case DType::kInt8:
      return {unit + place.offset + token * dim, scales + token};
    case DType::kInt4:
      return {unit + place.offset + token * Int4Bytes(dim), scales + token * Int4Groups(dim)};
    default:
      return {unit + place.offset + token * dim * (kv.storage == DType::kFloat32 ? 4 : 2), nullptr};
  }
}

// Whether whole runs of plain keys or values lie on 16 bytes, for all tokens. Units begin on at least as much.
template <typename T>
bool IsAligned(const KvLayout& kv, const KvPlace& place) {
  return AreAligned<T>(kv.arena, place.dim) && place.offset % 16 == 0;
}

}  // namespace berth::ops::cuda

#endif  // BERTH_MODELS_OPS_PAGED_ATTENTION_KV_CUH_
