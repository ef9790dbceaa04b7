// Attention over spans of keys that every query sees: encoders, whose keys are packed beside the queries, and
// cross-attention over the blocks of the arena.
#include "models/ops/bidirectional_attention/bidirectional_attention_args.h"
#include "models/ops/paged_attention/attention_kernel.cuh"

namespace berth::ops::cuda {
namespace {

// All keys of the row, for each of its queries.
struct AllKeys {
  static constexpr int kNumParts = 1;

  DType type;
  bool key_aligned, value_aligned;
  const int64_t* lengths;  // by row
  const char* key;         // packed; null: in the blocks of a.kv
  const char* value;
  int64_t key_stride, value_stride;  // bytes between packed tokens

  __device__ Positions SeenBy(const AttentionArgs&, const LaneSet& set) const {
    return {0, static_cast<int>(lengths[set.row])};
  }
  __device__ RowPartials PartialsOf(const Row& row, int index) const {
    return {row.first_cross_partial, SplitsOf(lengths[index])};
  }
  __device__ Positions VisibleIn(const AttentionArgs&, const LaneSet& set, int, int) const { return set.seen; }
  __device__ TileFormat FormatOf(const AttentionArgs& a, int, bool is_key) const {
    const KvPlace& place = is_key ? a.kv.key : a.kv.value;
    return {type, static_cast<int>(place.dim), is_key ? key_aligned : value_aligned};
  }
  __device__ TokenPlace Find(const AttentionArgs& a, const LaneSet& set, int, bool is_key, int position) const {
    const KvPlace& place = is_key ? a.kv.key : a.kv.value;
    if (key == nullptr) return PlaceOf(a.kv, place, set.row, set.kv_head, position);
    const int64_t token = a.rows[set.row].first_token + position;
    const char* data = is_key ? key + token * key_stride : value + token * value_stride;
    return {const_cast<char*>(data) + set.kv_head * place.dim * (type == DType::kFloat32 ? 4 : 2), nullptr};
  }
};

// What both kinds of attention have, under the names of the causal one.
AttentionArgs CommonArgs(const BidirectionalAttentionArgs& a, DType type) {
  AttentionArgs args = {};
  args.kv = {.arena = const_cast<char*>(a.arena),
             .blocks = a.blocks,
             .storage = type,
             .key = {.offset = a.key_offset, .scale_offset = 0, .dim = a.key_dim},
             .value = {.offset = a.value_offset, .scale_offset = 0, .dim = a.value_dim},
             .block_tokens = a.block_tokens,
             .kv_heads = a.kv_heads};
  args.rows = a.rows;
  args.tiles = a.tiles;
  args.query = a.query;
  args.out = a.out;
  args.query_stride = a.query_stride;
  args.q_heads = a.q_heads;
  args.bias = a.bias;
  args.bias_reach = a.bias_reach;
  args.scale = a.scale;
  args.partials = a.partials;
  return args;
}

}  // namespace

template <typename T>
int BidirectionalAttention(const BidirectionalAttentionArgs& a, const LaunchParams& launch) {
  const AttentionArgs args = CommonArgs(a, kTypeOf<T>);
  AllKeys keys = {};
  keys.type = kTypeOf<T>;
  keys.lengths = a.lengths;
  if (a.blocks == nullptr) {
    keys.key = static_cast<const char*>(a.key);
    keys.value = static_cast<const char*>(a.value);
    keys.key_stride = a.key_stride * static_cast<int64_t>(sizeof(T));
    keys.value_stride = a.value_stride * static_cast<int64_t>(sizeof(T));
    keys.key_aligned = AreAligned<T>(a.key, a.key_stride) && AreAligned<T>(a.key, a.key_dim);
    keys.value_aligned = AreAligned<T>(a.value, a.value_stride) && AreAligned<T>(a.value, a.value_dim);
  } else {
    keys.key_aligned = IsAligned<T>(args.kv, args.kv.key);
    keys.value_aligned = IsAligned<T>(args.kv, args.kv.value);
  }
  return LaunchAttention(args, keys, launch);
}

template int BidirectionalAttention<float>(const BidirectionalAttentionArgs&, const LaunchParams&);
template int BidirectionalAttention<BFloat16>(const BidirectionalAttentionArgs&, const LaunchParams&);

}  // namespace berth::ops::cuda
