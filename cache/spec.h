// What each layer of a model needs cached, and how those needs become pools.
//
// A model declares one LayerCacheSpec per layer. Equal needs form a group; each group gets a pool of equal units in the
// arena. Plain data and pure functions; thread-safe. No torch here.
//
// To add a cache kind: 1. name it in CacheKind and CacheKindName; 2. give its need a struct or a field here and its
// unit layout in BuildCachePlan; 3. say in SequenceLease what Grow and Crop mean for it; 4. add a case to
// tests/cache/lease_test.cc.
#ifndef BERTH_CACHE_SPEC_H_
#define BERTH_CACHE_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

// kInt8 and kInt4 are of cached keys and values (see KvTensor), kInt8 of checkpoints too (see CheckpointTensor); never
// of weights, of the states that steps read and write, or of the cross kind.
enum class DType : uint8_t { kFloat32, kBFloat16, kInt8, kInt4 };
int64_t DTypeBytes(DType dtype);           // REQUIRES: not kInt4
absl::string_view DTypeName(DType dtype);  // "float32", "bfloat16", "int8", "int4"
bool IsQuantised(DType dtype);

// The `pool` label of the metrics. kRecurrent holds every state of a recurrent layer, its convolution's too. kCross
// holds what a decoder layer keeps of the encoder's output: as long as the encoder's input, whatever is generated.
// kCheckpoint holds quantised copies of the states, from which later sequences go on: no step reads or writes them.
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
  int64_t chunk = 0;        // a query sees the keys of its own chunk of positions; 0: all. Not together with a window.
  int64_t sink_tokens = 0;  // beside its window a query sees the sequence's first tokens, so many; 0: no more than that

  // The oldest position that a query at `position` sees in its window or chunk.
  int64_t FirstVisible(int64_t position) const;
  // The most positions that any query sees; 0: no limit.
  int64_t Reach() const { return window > 0 ? window : chunk; }
  // The blocks of the sinks, which every query sees; then the number of those after them that no query at `position` or
  // later sees.
  int64_t SinkBlocks(int64_t block_tokens) const;
  int64_t LeftBlocks(int64_t position, int64_t block_tokens) const;
  // LeftBlocks is the same for all positions from `position` up to this one.
  int64_t StaysUntil(int64_t position, int64_t block_tokens) const;

  friend bool operator==(const KvSpec&, const KvSpec&) = default;
};

// The keys, or the values, of one layer in one block: values [kv_head][token][dim], then, of a quantised type, scales
// [kv_head][token][group], bfloat16, from `scale_offset` on. A number is q * scale: q in [-127, 127] of int8, whose
// group is the head, in [-7, 7] of int4, whose groups are of kInt4Group dimensions. The scale is that of the group's
// largest number over 127 or 7, rounded before q is, so a token's bytes depend on that token alone. int4 lies two to a
// byte, as q + 8: byte i of a group of n dimensions holds i below and i + (n + 1) / 2 above.
struct KvTensor {
  int64_t scale_offset = 0;  // bytes from the tensor's first; 0: no scales
  int64_t size_bytes = 0;    // with the scales and the padding
};
inline constexpr int64_t kInt4Group = 32;
// `dim`: kv's key_dim or value_dim.
KvTensor LayOutKvTensor(const KvSpec& kv, int64_t dim, int64_t block_tokens);

// One named state of a recurrent layer, of fixed size whatever the sequence's length.
struct StateSpec {
  std::string name;            // "conv", "recurrent"
  std::vector<int64_t> shape;  // per sequence
  DType dtype = DType::kFloat32;
  // A token of the prompt changes it otherwise than the same token as output.
  bool knows_prompt = false;

  friend bool operator==(const StateSpec&, const StateSpec&) = default;
};

// A layer may need keys and values, states, both (falcon_h1), or nothing (an MLP); a layer with cross-attention also
// the keys and values of the encoder's output.
struct LayerCacheSpec {
  std::optional<KvSpec> kv;
  // The newest recent->window tokens of kv again, in full precision: a query reads those, and older ones from kv.
  std::optional<KvSpec> recent;
  std::vector<StateSpec> states;
  std::optional<KvSpec> cross;  // without a window
};

// Stores the layers' keys and values as `dtype`, kInt8 or kInt4. Of kInt4 the newest `residual_tokens` are read in full
// precision (0: none), so a layer that reaches no further stays as it is. States and cross stay as they are.
void QuantiseKv(DType dtype, int64_t residual_tokens, std::vector<LayerCacheSpec>* layers);

// Lets the layers' queries see the newest `window` tokens and the first `sink_tokens` (StreamingLLM, Xiao et al. 2023):
// those whose queries would see all, or a window of no less. Smaller windows, chunks and cross stay as they are.
// To be called before QuantiseKv.
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

// One state in a checkpoint: its numbers [element], in the order in which the state unit has them, then, of those that
// are quantised, scales [group], bfloat16, from `scale_offset` on, of groups of kCheckpointGroup elements. A number is
// q * scale, q an int8 in [-127, 127]; the scale is that of the group's largest number over 127, rounded before q is.
// The scale of a group in which a number is none (NaN or infinite) is NaN, and so is all that comes of it. A state that
// would not get smaller is copied as it is.
struct CheckpointTensor {
  int64_t state_offset = 0;  // bytes from the state unit's first
  int64_t num_elements = 0;
  DType dtype = DType::kFloat32;  // the state's
  int64_t offset = 0;             // bytes from the checkpoint's first
  int64_t scale_offset = 0;       // bytes from the tensor's first; 0: copied as it is
  int64_t size_bytes = 0;         // with the scales and the padding, which is zeros
};
inline constexpr int64_t kCheckpointGroup = 32;

// Unit layouts, all offsets in bytes and 64-byte aligned:
//   KV          [layer of the group][key | value][KvTensor]; cross the same, of encoder tokens
//   states      [layer of the group][state][the state's own shape]
//   checkpoints [layer of the group][state][CheckpointTensor]
struct CachePlan {
  int64_t block_tokens = 0;  // tokens per KV unit
  std::vector<CacheGroup> groups;
  std::vector<LayerCacheSlot> layers;         // by model layer index
  std::vector<CheckpointTensor> checkpoints;  // what a unit of the checkpoint group is made of
  // Some state knows_prompt: only what prompts left is what another sequence's prompt would leave.
  bool only_prompts_share = false;

  // Bytes a sequence's KV grows by for each token while no window has filled.
  int64_t BytesPerToken() const;
  // Bytes that each encoder token takes, from the sequence's first step on; 0: a model without an encoder.
  int64_t CrossBytesPerToken() const;
  bool has_cross() const { return CrossBytesPerToken() > 0; }
  // The group of all states; -1: the model has none.
  int state_group() const;
  // The group of quantised checkpoints, after all others; -1: there is none, and states are kept as they are.
  int checkpoint_group() const;
  // The group of the states that the prefix index keeps: one of these two; -1: the model has none.
  int kept_group() const { return checkpoint_group() >= 0 ? checkpoint_group() : state_group(); }
  // Bytes of state a sequence holds from its first token on.
  int64_t StateBytesPerSequence() const;
};

// REQUIRES: block_tokens is a power of two in [1, 1024] and every dimension is positive; INVALID_ARGUMENT otherwise.
absl::StatusOr<CachePlan> BuildCachePlan(const std::vector<LayerCacheSpec>& layers, int64_t block_tokens);

// Lets the prefix index keep states in int8: adds the checkpoint group to the plan that these layers have, if they have
// states. What steps read and write stays as it is.
void QuantiseCheckpoints(const std::vector<LayerCacheSpec>& layers, CachePlan* plan);

}  // namespace berth

#endif  // BERTH_CACHE_SPEC_H_
