// What each layer of a model needs cached, and how those needs become pools.
//
// A model declares one LayerCacheSpec per layer. Layers with equal needs form a group, and each group gets a pool of
// equal units in the arena. Plain data and pure functions; thread-safe. No torch here.
//
// To add a cache kind:
//   1. name it in CacheKind and CacheKindName;
//   2. give its need a struct or a field here, and its unit layout in BuildCachePlan;
//   3. define in SequenceLease what Grow and Crop do for it;
//   4. add a case to tests/cache/lease_test.cc.
#ifndef BERTH_CACHE_SPEC_H_
#define BERTH_CACHE_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/dtype.h"

namespace berth {

int64_t DTypeBytes(DType dtype);           // REQUIRES: not kInt4
absl::string_view DTypeName(DType dtype);  // "float32", "bfloat16", "int8", "int4"

// The `pool` label of the metrics.
//   - kRecurrent holds every state of a recurrent layer, its convolution's too.
//   - kCross holds a decoder layer's keys and values of the encoder's output: its size follows the encoder's input.
//   - kCheckpoint holds quantised copies of states, from which later sequences start. Steps do not touch them.
enum class CacheKind : uint8_t { kStatic, kSliding, kChunked, kRecurrent, kCross, kCheckpoint };
inline constexpr int kNumCacheKinds = 6;
// "static", "sliding", "chunked", "recurrent", "cross", "checkpoint"
absl::string_view CacheKindName(CacheKind kind);

// Keys and values of one attention layer.
struct KvSpec {
  int64_t kv_heads = 0;
  int64_t key_dim = 0;    // per head
  int64_t value_dim = 0;  // per head
  DType dtype = DType::kFloat32;
  int64_t window = 0;       // a query at position p sees keys at positions > p - window; 0: all of them
  int64_t chunk = 0;        // a query sees the keys of its own chunk of positions; 0: all. Excludes a window.
  int64_t sink_tokens = 0;  // with a window, a query also sees this number of first tokens of the sequence

  // The oldest position that a query at `position` sees in its window or chunk.
  int64_t FirstVisible(int64_t position) const;
  // The most positions that any query sees; 0: no limit.
  int64_t Reach() const { return window > 0 ? window : chunk; }
  // The number of blocks of the sinks, which every query sees; and the number of blocks after them that have expired:
  // no query at `position` or later sees them.
  int64_t SinkBlocks(int64_t block_tokens) const;
  int64_t ExpiredBlocks(int64_t position, int64_t block_tokens) const;
  // ExpiredBlocks is the same for all positions from `position` up to, but not including, the returned one.
  int64_t ExpiryStableUntil(int64_t position, int64_t block_tokens) const;

  friend bool operator==(const KvSpec&, const KvSpec&) = default;
};

// The keys, or the values, of one layer in one block: numbers [kv_head][token][dim]. A quantised type has scales after
// them, [kv_head][token][group], bfloat16, from `scale_offset` on. A number is q * scale:
//   - int8: q in [-127, 127], and a group is a head;
//   - int4: q in [-7, 7], and a group has kInt4Group dimensions.
// The scale is the group's largest magnitude over 127 or 7, rounded to bfloat16 before q is computed. So a token's
// bytes depend only on that token. int4 packs two numbers as q + 8 into a byte. Byte i of a group of n dimensions holds
// dimension i in its low half and i + (n + 1) / 2 in its high half.
struct KvTensor {
  int64_t scale_offset = 0;  // bytes from the tensor's first; 0: no scales
  int64_t size_bytes = 0;    // with the scales and the padding
};
// `dim`: kv's key_dim or value_dim.
KvTensor LayOutKvTensor(const KvSpec& kv, int64_t dim, int64_t block_tokens);

// One named state of a recurrent layer. Its size does not depend on the sequence's length.
struct StateSpec {
  std::string name;            // "conv", "recurrent"
  std::vector<int64_t> shape;  // per sequence
  DType dtype = DType::kFloat32;
  // Whether a token changes the state differently as part of the prompt than as output.
  bool prompt_dependent = false;

  friend bool operator==(const StateSpec&, const StateSpec&) = default;
};

// A layer may need keys and values, states, both (falcon_h1), or nothing (an MLP). A layer with cross-attention also
// needs the keys and values of the encoder's output.
struct LayerCacheSpec {
  std::optional<KvSpec> kv;
  // A second copy of the newest recent->window tokens of kv, in full precision. A query reads those from the copy, and
  // older ones from kv.
  std::optional<KvSpec> recent;
  std::vector<StateSpec> states;
  std::optional<KvSpec> cross;  // without a window
};

// Stores the layers' keys and values as `dtype`, kInt8 or kInt4. With kInt4, queries read the newest `residual_tokens`
// in full precision (0: none); a layer that reaches no further is not quantised. States and cross are not quantised.
void QuantiseKv(DType dtype, int64_t residual_tokens, std::vector<LayerCacheSpec>* layers);

// Limits queries to the newest `window` tokens and the first `sink_tokens` (StreamingLLM, Xiao et al. 2023). It applies
// to layers whose queries see all tokens or a window at least as large. Smaller windows, chunks and cross stay as they
// are. Call it before QuantiseKv.
void LimitAttention(int64_t window, int64_t sink_tokens, std::vector<LayerCacheSpec>* layers);

// One pool's worth: all layers with the same need.
struct CacheGroup {
  CacheKind kind = CacheKind::kStatic;
  KvSpec kv;                // all but kRecurrent and kCheckpoint
  std::vector<int> layers;  // model layer indices, ascending
  // KV and cross: one block of tokens, all layers. kRecurrent and kCheckpoint: all states of one sequence.
  int64_t unit_bytes = 0;

  // Whether it holds states.
  bool of_states() const { return kind == CacheKind::kRecurrent || kind == CacheKind::kCheckpoint; }
  // Whether a sequence's tokens add to it.
  bool grows() const { return !of_states() && kind != CacheKind::kCross; }
};

// Where one layer's bytes lie inside a unit of its group(s).
struct LayerCacheSlot {
  int kv_group = -1;  // -1: none
  int64_t key_offset = 0;
  int64_t value_offset = 0;
  int recent_group = -1;  // -1: none
  int64_t recent_key_offset = 0;
  int64_t recent_value_offset = 0;
  int state_group = -1;                // -1: none
  std::vector<int64_t> state_offsets;  // one per StateSpec, in the layer's order
  int cross_group = -1;                // -1: none
  int64_t cross_key_offset = 0;
  int64_t cross_value_offset = 0;
};

// One state in a checkpoint: its numbers [element], in the order of the state unit. A quantised state has scales after
// them, [group], bfloat16, from `scale_offset` on, one for each kCheckpointGroup elements. A number is q * scale, with
// q an int8 in [-127, 127]. The scale is the group's largest magnitude over 127, rounded before q is computed. If any
// element of a group is NaN or infinite, the scale and all expanded values are NaN. A state that would not get smaller
// is copied unchanged.
struct CheckpointTensor {
  int64_t state_offset = 0;  // bytes from the state unit's first
  int64_t num_elements = 0;
  DType dtype = DType::kFloat32;  // the state's
  int64_t offset = 0;             // bytes from the checkpoint's first
  int64_t scale_offset = 0;       // bytes from the tensor's first; 0: copied as it is
  int64_t size_bytes = 0;         // with the scales and the padding, which is zeros
};
inline constexpr int64_t kCheckpointGroup = 32;

// Unit layouts. All offsets are in bytes and 64-byte aligned.
//     KV          [layer of the group][key | value][KvTensor]; cross the same, of encoder tokens
//     states      [layer of the group][state][the state's own shape]
//     checkpoints [layer of the group][state][CheckpointTensor]
struct CachePlan {
  int64_t block_tokens = 0;  // tokens per KV unit
  std::vector<CacheGroup> groups;
  std::vector<LayerCacheSlot> layers;         // by model layer index
  std::vector<CheckpointTensor> checkpoints;  // what a unit of the checkpoint group is made of
  // Whether some state is prompt_dependent. Then only prompts share what they left in the cache, not outputs.
  bool share_prompts_only = false;

  // Bytes by which a sequence's KV grows for each token, until a window is full.
  int64_t BytesPerToken() const;
  // Bytes for each encoder token, from the sequence's first step on; 0: the model has no encoder.
  int64_t CrossBytesPerToken() const;
  bool has_cross() const { return CrossBytesPerToken() > 0; }
  // The group of all states; -1: the model has none.
  int state_group() const;
  // The group of quantised checkpoints, after all others; -1: checkpoints are not quantised.
  int checkpoint_group() const;
  // The group whose units the prefix index keeps as states: one of these two; -1: the model has no states.
  int kept_group() const { return checkpoint_group() >= 0 ? checkpoint_group() : state_group(); }
  // Bytes of states that a sequence holds from its first token on.
  int64_t StateBytesPerSequence() const;
};

// REQUIRES: block_tokens is a power of two in [1, 1024]; every dimension is positive; neither a state nor a layer's
// part of a block has more than 2^32 numbers. INVALID_ARGUMENT otherwise.
absl::StatusOr<CachePlan> BuildCachePlan(const std::vector<LayerCacheSpec>& layers, int64_t block_tokens);

// Makes the prefix index keep states in int8: adds the checkpoint group to the plan of these layers, if they have
// states. The states that steps read and write do not change.
void QuantiseCheckpoints(const std::vector<LayerCacheSpec>& layers, CachePlan* plan);

}  // namespace berth

#endif  // BERTH_CACHE_SPEC_H_
