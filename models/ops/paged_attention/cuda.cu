// Causal attention over the blocks of the arena.
#include "models/ops/paged_attention/attention_kernel.cuh"

namespace berth::ops::cuda {
namespace {

// What a query sees is read in this order: the sinks that its window has left, then the window or chunk from a.kv, then
// its newest tokens from a.recent.
enum Part { kSinks, kOlder, kRecent, kAllParts };

// What a query at `position` sees in its window or chunk.
__device__ inline Positions Visible(const AttentionArgs& a, int position) {
  const int chunk = static_cast<int>(a.chunk);
  const int in_chunk = chunk > 0 ? position - position % chunk : 0;
  const int in_window = a.window > 0 ? max(0, position - static_cast<int>(a.window) + 1) : 0;
  return {max(in_chunk, in_window), position + 1};
}

// The keys up to the query itself, within its window or chunk.
struct CausalKeys {
  static constexpr int kNumParts = kAllParts;

  DType type;
  bool key_aligned, value_aligned, recent_aligned;

  __device__ Positions SeenBy(const AttentionArgs& a, const LaneSet& set) const {
    const int oldest = a.sink_tokens > 0 ? 0 : Visible(a, set.Position(0)).first;
    return {oldest, set.Position(set.count - 1) + 1};
  }
  __device__ RowPartials PartialsOf(const Row& row, int) const {
    return {row.first_partial, SplitsOf(row.start + row.num_tokens)};
  }
  __device__ Positions VisibleIn(const AttentionArgs& a, const LaneSet&, int position, int part) const {
    const Positions all = Visible(a, position);
    if (part == kSinks) return {0, min(static_cast<int>(a.sink_tokens), all.first)};
    if (a.recent_tokens == 0) return part == kOlder ? all : Positions{0, 0};
    const int border = max(all.last - static_cast<int>(a.recent_tokens), all.first);
    return part == kRecent ? Positions{border, all.last} : Positions{all.first, border};
  }
  __device__ TileFormat FormatOf(const AttentionArgs& a, int part, bool is_key) const {
    const KvLayout& kv = part == kRecent ? a.recent : a.kv;
    const bool aligned = part == kRecent ? recent_aligned : (is_key ? key_aligned : value_aligned);
    return {kv.storage, static_cast<int>(is_key ? kv.key.dim : kv.value.dim), aligned};
  }
  __device__ TokenPlace Find(const AttentionArgs& a, const LaneSet& set, int part, bool is_key, int position) const {
    const KvLayout& kv = part == kRecent ? a.recent : a.kv;
    return PlaceOf(kv, is_key ? kv.key : kv.value, set.row, set.kv_head, position);
  }
};

}  // namespace

template <typename T>
int Attention(const AttentionArgs& a, const LaunchParams& launch) {
  // int8 is read in runs of eight bytes.
  const bool is_plain = !IsQuantised(a.kv.storage);
  CausalKeys keys = {};
  keys.type = kTypeOf<T>;
  keys.key_aligned = is_plain ? IsAligned<T>(a.kv, a.kv.key) : a.kv.key.dim % 8 == 0;
  keys.value_aligned = is_plain ? IsAligned<T>(a.kv, a.kv.value) : a.kv.value.dim % 8 == 0;
  keys.recent_aligned = IsAligned<T>(a.recent, a.recent.key) && IsAligned<T>(a.recent, a.recent.value);
  return LaunchAttention(a, keys, launch);
}

template int Attention<float>(const AttentionArgs&, const LaunchParams&);
template int Attention<BFloat16>(const AttentionArgs&, const LaunchParams&);

}  // namespace berth::ops::cuda
