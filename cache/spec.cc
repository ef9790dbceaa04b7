#include "cache/spec.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace berth {
namespace {

constexpr int64_t kAlignment = 64;  // of every tensor inside a unit, so of every unit

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

absl::Status CheckDimension(int layer, absl::string_view what, int64_t value) {
  if (value > 0 && value < (int64_t{1} << 31)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", layer, ": cache ", what, " is ", value, ", outside [1, 2^31)"));
}

// The most numbers of one layer's keys and values in a block, or of one of its states. With it, the bytes of a unit of
// 2^16 layers, and of a slab of such units, stay within int64.
constexpr int64_t kMaxNumbers = int64_t{1} << 32;

// REQUIRES: each of `factors` passed CheckDimension.
absl::Status CheckProduct(int layer, absl::string_view what, absl::Span<const int64_t> factors) {
  double product = 1;
  for (int64_t factor : factors) product *= static_cast<double>(factor);
  if (product <= static_cast<double>(kMaxNumbers)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", layer, ": cache ", what, " has ", product, " numbers, more than ", kMaxNumbers));
}

absl::Status CheckKv(int index, const KvSpec& kv, int64_t block_tokens) {
  for (auto [what, value] : {std::pair<absl::string_view, int64_t>{"kv_heads", kv.kv_heads},
                             {"key_dim", kv.key_dim},
                             {"value_dim", kv.value_dim},
                             {"window", kv.window == 0 ? 1 : kv.window},
                             {"chunk", kv.chunk == 0 ? 1 : kv.chunk},
                             {"sink_tokens", kv.sink_tokens == 0 ? 1 : kv.sink_tokens}}) {
    if (absl::Status status = CheckDimension(index, what, value); !status.ok()) return status;
  }
  if (kv.sink_tokens > 0 && kv.window == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", index, ": cache sink_tokens is ", kv.sink_tokens, " without a window"));
  }
  return CheckProduct(index, "block", {block_tokens, kv.kv_heads, kv.key_dim + kv.value_dim});
}

absl::Status CheckLayer(int index, const LayerCacheSpec& layer, int64_t block_tokens) {
  for (const std::optional<KvSpec>& kv : {layer.kv, layer.recent, layer.cross}) {
    if (!kv.has_value()) continue;
    if (absl::Status status = CheckKv(index, *kv, block_tokens); !status.ok()) return status;
  }
  for (const std::optional<KvSpec>& kv : {layer.recent, layer.cross}) {
    if (!kv.has_value() || !IsQuantised(kv->dtype)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", index, ": cache ", DTypeName(kv->dtype), " is of a layer's own keys and values only"));
  }
  if (layer.recent.has_value() &&
      (!layer.kv.has_value() || layer.recent->window == 0 || layer.recent->sink_tokens > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", index, ": cache recent is a window over a layer's keys and values"));
  }
  if (layer.cross.has_value() && layer.cross->Reach() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", index, ": cache cross has a window of ",
                                                   layer.cross->Reach(), "; an encoder's output is seen whole"));
  }
  for (const StateSpec& state : layer.states) {
    for (int64_t dim : state.shape) {
      if (absl::Status status = CheckDimension(index, state.name, dim); !status.ok()) return status;
    }
    if (absl::Status status = CheckProduct(index, state.name, state.shape); !status.ok()) return status;
  }
  return absl::OkStatus();
}

int64_t NumElements(const StateSpec& state) {
  int64_t elements = 1;
  for (int64_t dim : state.shape) elements *= dim;
  return elements;
}

int64_t StateBytes(const StateSpec& state) { return RoundUp(NumElements(state) * DTypeBytes(state.dtype), kAlignment); }

// Index of the group of `kind` with need `kv`, made if there is none.
int KvGroup(CacheKind kind, const KvSpec& kv, std::vector<CacheGroup>* groups) {
  for (size_t g = 0; g < groups->size(); ++g) {
    if ((*groups)[g].kind == kind && (*groups)[g].kv == kv) return static_cast<int>(g);
  }
  CacheGroup& group = groups->emplace_back();
  group.kind = kind;
  group.kv = kv;
  return static_cast<int>(groups->size()) - 1;
}

// The only group of a kind; -1: there is none.
int GroupOf(CacheKind kind, const std::vector<CacheGroup>& groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].kind == kind) return static_cast<int>(g);
  }
  return -1;
}

// All states of a sequence share one unit, whatever their shapes: they live and die together.
int StateGroup(std::vector<CacheGroup>* groups) {
  if (const int group = GroupOf(CacheKind::kRecurrent, *groups); group >= 0) return group;
  groups->emplace_back().kind = CacheKind::kRecurrent;
  return static_cast<int>(groups->size()) - 1;
}

struct KvPlace {
  int group;
  int64_t key_offset, value_offset;
};

// Appends a layer's keys and values to the units of their group.
KvPlace PlaceKv(int index, CacheKind kind, const KvSpec& kv, int64_t block_tokens, std::vector<CacheGroup>* groups) {
  KvPlace place = {.group = KvGroup(kind, kv, groups), .key_offset = 0, .value_offset = 0};
  CacheGroup& group = (*groups)[place.group];
  place.key_offset = group.unit_bytes;
  place.value_offset = place.key_offset + LayOutKvTensor(kv, kv.key_dim, block_tokens).size_bytes;
  group.unit_bytes = place.value_offset + LayOutKvTensor(kv, kv.value_dim, block_tokens).size_bytes;
  group.layers.push_back(index);
  return place;
}

CacheKind KindOf(const KvSpec& kv) {
  if (kv.window > 0) return CacheKind::kSliding;
  return kv.chunk > 0 ? CacheKind::kChunked : CacheKind::kStatic;
}

LayerCacheSlot PlaceLayer(int index, const LayerCacheSpec& layer, int64_t block_tokens,
                          std::vector<CacheGroup>* groups) {
  LayerCacheSlot slot;
  if (layer.kv.has_value()) {
    const KvPlace place = PlaceKv(index, KindOf(*layer.kv), *layer.kv, block_tokens, groups);
    slot.kv_group = place.group;
    slot.key_offset = place.key_offset;
    slot.value_offset = place.value_offset;
  }
  if (layer.recent.has_value()) {
    const KvPlace place = PlaceKv(index, KindOf(*layer.recent), *layer.recent, block_tokens, groups);
    slot.recent_group = place.group;
    slot.recent_key_offset = place.key_offset;
    slot.recent_value_offset = place.value_offset;
  }
  if (layer.cross.has_value()) {
    const KvPlace place = PlaceKv(index, CacheKind::kCross, *layer.cross, block_tokens, groups);
    slot.cross_group = place.group;
    slot.cross_key_offset = place.key_offset;
    slot.cross_value_offset = place.value_offset;
  }
  if (!layer.states.empty()) {
    slot.state_group = StateGroup(groups);
    CacheGroup& group = (*groups)[slot.state_group];
    for (const StateSpec& state : layer.states) {
      slot.state_offsets.push_back(group.unit_bytes);
      group.unit_bytes += StateBytes(state);
    }
    group.layers.push_back(index);
  }
  return slot;
}

}  // namespace

int64_t DTypeBytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : dtype == DType::kBFloat16 ? 2 : 1; }

absl::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt8:
      return "int8";
    case DType::kInt4:
      return "int4";
  }
  return "unknown";
}

absl::string_view CacheKindName(CacheKind kind) {
  switch (kind) {
    case CacheKind::kStatic:
      return "static";
    case CacheKind::kSliding:
      return "sliding";
    case CacheKind::kChunked:
      return "chunked";
    case CacheKind::kRecurrent:
      return "recurrent";
    case CacheKind::kCross:
      return "cross";
    case CacheKind::kCheckpoint:
      return "checkpoint";
  }
  return "unknown";
}

int64_t KvSpec::FirstVisible(int64_t position) const {
  if (chunk > 0) return position - position % chunk;
  return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

int64_t KvSpec::SinkBlocks(int64_t block_tokens) const { return (sink_tokens + block_tokens - 1) / block_tokens; }

int64_t KvSpec::ExpiredBlocks(int64_t position, int64_t block_tokens) const {
  return std::max<int64_t>(0, FirstVisible(position) / block_tokens - SinkBlocks(block_tokens));
}

int64_t KvSpec::ExpiryStableUntil(int64_t position, int64_t block_tokens) const {
  if (Reach() == 0) return std::numeric_limits<int64_t>::max();
  if (chunk > 0) return (position / chunk + 1) * chunk;
  return (FirstVisible(position) / block_tokens + 1) * block_tokens + window - 1;
}

KvTensor LayOutKvTensor(const KvSpec& kv, int64_t dim, int64_t block_tokens) {
  const int64_t heads = block_tokens * kv.kv_heads;
  if (!IsQuantised(kv.dtype)) return {.size_bytes = RoundUp(heads * dim * DTypeBytes(kv.dtype), kAlignment)};
  const bool int4 = kv.dtype == DType::kInt4;
  const int64_t scales = int4 ? (dim + kInt4Group - 1) / kInt4Group : 1;  // of one token's head
  KvTensor tensor;
  tensor.scale_offset = RoundUp(heads * (int4 ? (dim + 1) / 2 : dim), kAlignment);
  tensor.size_bytes = tensor.scale_offset + RoundUp(heads * scales * DTypeBytes(DType::kBFloat16), kAlignment);
  return tensor;
}

void QuantiseKv(DType dtype, int64_t residual_tokens, std::vector<LayerCacheSpec>* layers) {
  for (LayerCacheSpec& layer : *layers) {
    if (!layer.kv.has_value()) continue;
    if (dtype == DType::kInt4 && residual_tokens > 0) {
      if (layer.kv->Reach() > 0 && layer.kv->Reach() <= residual_tokens) continue;
      layer.recent = layer.kv;
      layer.recent->window = residual_tokens;
      layer.recent->chunk = 0;
      layer.recent->sink_tokens = 0;
    }
    layer.kv->dtype = dtype;
  }
}

void LimitAttention(int64_t window, int64_t sink_tokens, std::vector<LayerCacheSpec>* layers) {
  for (LayerCacheSpec& layer : *layers) {
    if (!layer.kv.has_value() || layer.kv->chunk > 0) continue;
    if (layer.kv->window > 0 && layer.kv->window < window) continue;
    layer.kv->window = window;
    layer.kv->sink_tokens = sink_tokens;
  }
}

int64_t CachePlan::BytesPerToken() const {
  int64_t bytes = 0;
  for (const CacheGroup& group : groups) {
    if (group.grows()) bytes += group.unit_bytes / block_tokens;
  }
  return bytes;
}

int64_t CachePlan::CrossBytesPerToken() const {
  int64_t bytes = 0;
  for (const CacheGroup& group : groups) {
    if (group.kind == CacheKind::kCross) bytes += group.unit_bytes / block_tokens;
  }
  return bytes;
}

int64_t CachePlan::StateBytesPerSequence() const {
  int64_t bytes = 0;
  for (const CacheGroup& group : groups) {
    if (group.kind == CacheKind::kRecurrent) bytes += group.unit_bytes;
  }
  return bytes;
}

int CachePlan::state_group() const { return GroupOf(CacheKind::kRecurrent, groups); }

int CachePlan::checkpoint_group() const { return GroupOf(CacheKind::kCheckpoint, groups); }

absl::StatusOr<CachePlan> BuildCachePlan(const std::vector<LayerCacheSpec>& layers, int64_t block_tokens) {
  if (block_tokens < 1 || block_tokens > 1024 || (block_tokens & (block_tokens - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_tokens is ", block_tokens, ", not a power of two in [1, 1024]"));
  }
  CachePlan plan;
  plan.block_tokens = block_tokens;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int index = static_cast<int>(i);
    if (absl::Status status = CheckLayer(index, layers[i], block_tokens); !status.ok()) return status;
    plan.layers.push_back(PlaceLayer(index, layers[i], block_tokens, &plan.groups));
    for (const StateSpec& state : layers[i].states) plan.share_prompts_only |= state.prompt_dependent;
  }
  if (plan.groups.empty()) return absl::InvalidArgumentError("no layer of the model needs a cache");
  return plan;
}

void QuantiseCheckpoints(const std::vector<LayerCacheSpec>& layers, CachePlan* plan) {
  const int state_group = plan->state_group();
  if (state_group < 0) return;
  CacheGroup group = {.kind = CacheKind::kCheckpoint, .layers = plan->groups[state_group].layers};
  for (size_t i = 0; i < layers.size(); ++i) {
    for (size_t s = 0; s < layers[i].states.size(); ++s) {
      const StateSpec& state = layers[i].states[s];
      CheckpointTensor tensor = {.state_offset = plan->layers[i].state_offsets[s],
                                 .num_elements = NumElements(state),
                                 .dtype = state.dtype,
                                 .offset = group.unit_bytes,
                                 .size_bytes = StateBytes(state)};
      const int64_t num_groups = (tensor.num_elements + kCheckpointGroup - 1) / kCheckpointGroup;
      const int64_t scale_offset = RoundUp(tensor.num_elements, kAlignment);
      const int64_t size_bytes = scale_offset + RoundUp(num_groups * DTypeBytes(DType::kBFloat16), kAlignment);
      if (size_bytes < tensor.size_bytes) {
        tensor.scale_offset = scale_offset;
        tensor.size_bytes = size_bytes;
      }
      group.unit_bytes += tensor.size_bytes;
      plan->checkpoints.push_back(tensor);
    }
  }
  plan->groups.push_back(std::move(group));
}

}  // namespace berth
