#include "models/ops/paged_attention/paged_attention.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "models/kernels/cpu/panels.h"
#include "models/ops/backend.h"
#include "models/ops/paged_attention/split_kv.h"
#include "models/ops/parallel.h"

namespace berth::ops {
namespace {

// A layer's keys and values in the blocks of `group`, at these offsets of each.
KvLayout LayoutOf(int group, int64_t key_offset, int64_t value_offset, const StepBatch& batch) {
  const KvSpec& kv = batch.group(group).kv;
  const auto place = [&](int64_t offset, int64_t dim) -> KvPlace {
    return {.offset = offset,
            .scale_offset = offset + LayOutKvTensor(kv, dim, batch.block_tokens()).scale_offset,
            .dim = dim};
  };
  return {.arena = batch.arena(),
          .blocks = batch.tables().decoder.blocks[group],
          .storage = kv.dtype,
          .key = place(key_offset, kv.key_dim),
          .value = place(value_offset, kv.value_dim),
          .block_tokens = batch.block_tokens(),
          .kv_heads = kv.kv_heads};
}

KvLayout LayoutOf(int layer, const StepBatch& batch) {
  const LayerCacheSlot& slot = batch.slot(layer);
  return LayoutOf(slot.kv_group, slot.key_offset, slot.value_offset, batch);
}

// The newest tokens in full precision. REQUIRES: the layer has them.
KvLayout RecentLayoutOf(int layer, const StepBatch& batch) {
  const LayerCacheSlot& slot = batch.slot(layer);
  return LayoutOf(slot.recent_group, slot.recent_key_offset, slot.recent_value_offset, batch);
}

// Whether each norm is one of a single head.
bool AreNormedAlone(const NewHeads& heads) {
  const auto is_alone = [&](const HeadNormWeights& norm) {
    return !norm.weight.defined() || norm.weight.size(0) == heads.head_dim;
  };
  return is_alone(heads.q_norm) && is_alone(heads.k_norm) && is_alone(heads.v_norm);
}

// PrepareHeads by several operations.
void PrepareInParts(const NewHeads& heads, int layer, const StepBatch& batch) {
  Execution& execution = batch.execution();
  const int64_t q_columns = heads.q_heads * heads.head_dim, kv_columns = heads.kv_heads * heads.head_dim;
  at::Tensor q = heads.qkv.narrow(1, 0, q_columns);
  at::Tensor k = heads.qkv.narrow(1, q_columns, kv_columns);
  at::Tensor v = heads.qkv.narrow(1, q_columns + kv_columns, kv_columns);
  const auto norm = [&](at::Tensor& x, const HeadNormWeights& weights) {
    if (weights.weight.defined() && x.size(1) > 0) RmsNormInPlace(x, weights.weight, weights.eps, execution);
  };
  const auto norm_queries_and_keys = [&] {
    norm(q, heads.q_norm);
    norm(k, heads.k_norm);
  };
  if (!heads.norms_after_rotary) norm_queries_and_keys();
  if (heads.rotation.cos.defined()) {
    at::Tensor qk = heads.qkv.narrow(1, 0, q_columns + kv_columns);
    Rotary(qk, heads.rotation, heads.head_dim, execution);
  }
  if (heads.norms_after_rotary) norm_queries_and_keys();
  norm(v, heads.v_norm);
  if (heads.kv_heads > 0) WriteKv(k, v, layer, batch);
}

// PrepareHeads by one kernel. False: there is no code for these sizes. REQUIRES: AreNormedAlone.
bool RunPrepareHeads(const NewHeads& heads, int layer, const StepBatch& batch) {
  CheckRows(heads.qkv);
  const auto norm = [](const HeadNormWeights& weights) -> HeadNorm {
    return {.weight = weights.weight.defined() ? weights.weight.const_data_ptr<float>() : nullptr,
            .eps = static_cast<float>(weights.eps)};
  };
  PrepareHeadsArgs args = {.rows = batch.tables().decoder.rows,
                           .tiles = batch.tables().decoder.tiles,
                           .qkv = heads.qkv.data_ptr(),
                           .stride = heads.qkv.stride(0),
                           .q_heads = heads.q_heads,
                           .kv_heads = heads.kv_heads,
                           .head_dim = heads.head_dim,
                           .q_norm = norm(heads.q_norm),
                           .k_norm = norm(heads.k_norm),
                           .v_norm = norm(heads.v_norm),
                           .norms_after_rotary = heads.norms_after_rotary};
  if (heads.kv_heads > 0) {
    args.kv = LayoutOf(layer, batch);
    TORCH_CHECK(
        args.kv.kv_heads == heads.kv_heads && args.kv.key.dim == heads.head_dim && args.kv.value.dim == heads.head_dim,
        "layer ", layer, " keeps ", args.kv.kv_heads, " heads of ", args.kv.key.dim, " and ", args.kv.value.dim,
        " columns, but gets ", heads.kv_heads, " of ", heads.head_dim);
  }
  args.has_recent = heads.kv_heads > 0 && batch.slot(layer).recent_group >= 0;
  if (args.has_recent) args.recent = RecentLayoutOf(layer, batch);
  if (heads.rotation.cos.defined()) {
    args.rotary_rows = heads.rotation.rows.const_data_ptr<int64_t>();
    args.cos = heads.rotation.cos.const_data_ptr<float>();
    args.sin = heads.rotation.sin.const_data_ptr<float>();
    args.rotary_dim = heads.rotation.cos.size(1) * 2;
  }
  const DType type = TypeOf(heads.qkv);
  if (BackendOf(heads.qkv, batch.execution()) == Backend::kCuda) {
    return IsLaunched(
        RunOnCuda(&cuda::Kernels::prepare_heads, type, args, LaunchParamsFor(heads.qkv, batch), batch.execution()));
  }
  const int64_t columns = (heads.q_heads + 2 * heads.kv_heads) * heads.head_dim;
  RunOnCpu(&cpu::Kernels::prepare_heads, type, args, batch.num_tiles(),
           batch.num_tokens() * columns * 4 / std::max<int64_t>(1, batch.num_tiles()), batch.execution());
  return true;
}

// Keys that the step's queries see, summed: the attention's cost.
int64_t VisibleKeys(const StepBatch& batch, const KvSpec& kv) {
  int64_t keys = 0;
  for (const Row& row : batch.decoder().rows) {
    const int64_t length = row.start + row.num_tokens;
    keys += row.num_tokens * (kv.window > 0 ? std::min(kv.window + kv.sink_tokens, length) : length);
  }
  return keys;
}

// How items share the keys of their tiles: so that there are items for all threads, where a few long rows decode. No
// bit depends on it.
SharedKeys ShareKeys(const AttentionArgs& args, const StepBatch& batch) {
  constexpr int64_t kMostSumBytes = 16 << 20;
  const int64_t tasks = kTasksPerThread * batch.execution().num_threads();
  const int64_t items = args.num_tiles * args.kv.kv_heads;
  if (args.tiles_per_item > 1 || batch.execution().num_threads() == 1 || items >= tasks) return {.splits = 1};
  int64_t positions = 0, queries = 0;
  for (const Row& row : batch.decoder().rows) {
    const int64_t in_tile = std::min(row.num_tokens, kQueryTile), length = row.start + row.num_tokens;
    positions = std::max(positions, args.window > 0 ? std::min(args.window + in_tile, length) : length);
    queries = std::max(queries, in_tile);
  }
  const int64_t segments = positions / kAttentionSegment + 2;  // they need not begin with what is read
  const int64_t lanes = queries * args.q_heads / args.kv.kv_heads;
  const SharedKeys shared = {.splits = std::min(positions / kAttentionSegment, (tasks + items - 1) / items),
                             .slots = segments + 2,
                             .lanes = lanes,
                             .slot_floats = lanes * (2 + PanelCount(args.kv.value.dim) * kPanel)};
  const int64_t bytes = items * shared.slots * shared.slot_floats * static_cast<int64_t>(sizeof(float));
  return shared.splits > 1 && bytes <= kMostSumBytes ? shared : SharedKeys{.splits = 1};
}

// Attention on the CPU, which takes about `operations` float operations.
void RunAttention(AttentionArgs args, const at::Tensor& query, int64_t operations, const StepBatch& batch) {
  const DType type = TypeOf(query);
  args.tiles_per_item = 1;
  if (batch.num_tokens() > batch.num_rows() * kQueryTile) {
    const int64_t lane_bytes = (args.kv.key.dim + args.kv.value.dim) * static_cast<int64_t>(sizeof(float));
    const int64_t tile_bytes = kQueryTile * args.q_heads / args.kv.kv_heads * lane_bytes;
    args.tiles_per_item = TilesPerItem(args.num_tiles * args.kv.kv_heads, tile_bytes, batch.execution());
  }
  args.shared = ShareKeys(args, batch);
  const int64_t tiles = (args.num_tiles + args.tiles_per_item - 1) / args.tiles_per_item;
  const int64_t items = tiles * args.kv.kv_heads * args.shared.splits;
  at::Tensor sums;
  if (args.shared.splits > 1) {
    const int64_t slots = tiles * args.kv.kv_heads * args.shared.slots;
    sums = at::empty({slots * args.shared.slot_floats}, query.options().dtype(at::kFloat));
    args.shared.sums = sums.data_ptr<float>();
  }
  RunOnCpu(&cpu::Kernels::attention, type, args, items, operations / std::max<int64_t>(1, items), batch.execution());
  if (args.shared.splits == 1) return;
  RunOnCpu(&cpu::Kernels::merge_attention, type, MergeAttentionArgs{args}, tiles * args.kv.kv_heads,
           args.shared.slots * args.shared.slot_floats, batch.execution());
}

// False: there is no code for these sizes.
bool LaunchAttention(AttentionArgs args, const at::Tensor& query, const StepBatch& batch) {
  const int64_t value_dim = args.kv.value.dim;
  const LeadingRows& leading = batch.leading_rows();
  cuda::LaunchParams launch = LaunchParamsFor(query, batch);
  launch.split = SplitOf(leading, leading.keys, args.q_heads, value_dim);
  const auto scratch_bytes = batch.execution().cuda_kernels->attention_scratch_bytes;
  const bool may_have_scratch = scratch_bytes != nullptr && TypeOf(query) == DType::kBFloat16;
  if (const int64_t bytes = may_have_scratch ? scratch_bytes(args, launch) : 0; bytes > 0) {
    // ATen does not reuse its memory until the stream has passed this point.
    const at::Tensor scratch = at::empty({bytes}, query.options().dtype(at::kByte));
    args.scratch = static_cast<char*>(scratch.data_ptr());
    if (IsLaunched(RunOnCuda(&cuda::Kernels::attention, TypeOf(query), args, launch, batch.execution()))) return true;
    args.scratch = nullptr;
  }
  return RunSplitOnCuda(&cuda::Kernels::attention, args, value_dim, query, launch, batch.execution());
}

}  // namespace

void PrepareHeads(const NewHeads& heads, int layer, const StepBatch& batch) {
  if (BackendOf(heads.qkv, batch.execution()) == Backend::kReference || !AreNormedAlone(heads) ||
      !RunPrepareHeads(heads, layer, batch)) {
    PrepareInParts(heads, layer, batch);
  }
}

void WriteKv(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch) {
  const Backend backend = BackendOf(key, batch.execution());
  if (backend == Backend::kReference) return reference::WriteKv(key, value, layer, batch);
  WriteKvArgs args = {.kv = LayoutOf(layer, batch),
                      .rows = batch.tables().decoder.rows,
                      .key = RowsOf(key),
                      .value = RowsOf(value),
                      .key_stride = key.stride(0),
                      .value_stride = value.stride(0)};
  const auto write = [&] {
    if (backend == Backend::kCuda) {
      CheckLaunched(
          RunOnCuda(&cuda::Kernels::write_kv, TypeOf(key), args, LaunchParamsFor(key, batch), batch.execution()));
      return;
    }
    RunOnCpu(&cpu::Kernels::write_kv, TypeOf(key), args, batch.num_rows(),
             batch.num_tokens() * key.size(1) / batch.num_rows(), batch.execution());
  };
  write();
  if (batch.slot(layer).recent_group < 0) return;
  args.kv = RecentLayoutOf(layer, batch);
  write();
}

at::Tensor Attention(const at::Tensor& query, const AttentionShape& shape, const StepBatch& batch) {
  const Backend backend = BackendOf(query, batch.execution());
  if (backend == Backend::kReference) return reference::Attention(query, shape, batch);
  const int group = batch.slot(shape.layer).kv_group;
  AttentionArgs args = {.kv = LayoutOf(shape.layer, batch),
                        .rows = batch.tables().decoder.rows,
                        .tiles = batch.tables().decoder.tiles,
                        .num_tiles = batch.num_tiles(),
                        .tiles_per_item = 1,
                        .query = RowsOf(query),
                        .out = nullptr,
                        .query_stride = query.stride(0),
                        .q_heads = shape.q_heads,
                        .recent = {},
                        .recent_tokens = 0,
                        .window = batch.group(group).kv.window,
                        .chunk = batch.group(group).kv.chunk,
                        .sink_tokens = batch.group(group).kv.sink_tokens,
                        .sinks = shape.sinks.defined() ? shape.sinks.const_data_ptr<float>() : nullptr,
                        .bias = nullptr,
                        .bias_reach = 0,
                        .scale = static_cast<float>(shape.scale),
                        .softcap = static_cast<float>(shape.softcap),
                        .partials = nullptr,
                        .scratch = nullptr,
                        .shared = {.splits = 1}};
  if (const int recent = batch.slot(shape.layer).recent_group; recent >= 0) {
    args.recent = RecentLayoutOf(shape.layer, batch);
    args.recent_tokens = batch.group(recent).kv.window;
  }
  if (shape.distance_bias.defined()) {
    args.bias = shape.distance_bias.const_data_ptr<float>();
    args.bias_reach = shape.distance_bias.size(1) / 2;
  }
  at::Tensor out = at::empty({query.size(0), shape.q_heads * args.kv.value.dim}, query.options());
  args.out = out.data_ptr();
  if (backend == Backend::kCuda) {
    return LaunchAttention(args, query, batch) ? out : reference::Attention(query, shape, batch);
  }

  RunAttention(args, query,
               VisibleKeys(batch, batch.group(group).kv) * shape.q_heads * (args.kv.key.dim + args.kv.value.dim),
               batch);
  return out;
}

}  // namespace berth::ops
