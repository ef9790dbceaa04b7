#include "models/ops/bidirectional_attention/bidirectional_attention.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "models/ops/backend.h"
#include "models/ops/paged_attention/split_kv.h"
#include "models/ops/parallel.h"

namespace berth::ops {
namespace {

// What the two attentions have in common; keys and values are still to be named.
BidirectionalAttentionArgs CommonArgs(const at::Tensor& query, const BidirectionalAttentionShape& shape) {
  BidirectionalAttentionArgs args = {};
  args.query = RowsOf(query);
  args.query_stride = query.stride(0);
  args.q_heads = shape.q_heads;
  args.scale = static_cast<float>(shape.scale);
  if (shape.distance_bias.defined()) {
    args.bias = shape.distance_bias.const_data_ptr<float>();
    args.bias_reach = shape.distance_bias.size(1) / 2;
  }
  return args;
}

// `keys`: that the queries see, summed over the rows.
void RunTilesOnCpu(const BidirectionalAttentionArgs& args, DType type, int64_t keys, Execution& execution) {
  const int64_t items = (args.num_tiles + args.tiles_per_item - 1) / args.tiles_per_item * args.kv_heads;
  const int64_t operations = keys * args.q_heads * (args.key_dim + args.value_dim) / std::max<int64_t>(1, items);
  RunOnCpu(&cpu::Kernels::bidirectional_attention, type, args, items, operations, execution);
}

// False: there is no code for these sizes.
bool Launch(const BidirectionalAttentionArgs& args, const at::Tensor& query, const cuda::LaunchParams& launch,
            const Execution& execution) {
  return RunSplitOnCuda(&cuda::Kernels::bidirectional_attention, args, args.value_dim, query, launch, execution);
}

// For an operation on the step's encoders.
cuda::LaunchParams EncoderLaunchParams(const at::Tensor& x, const StepBatch& batch) {
  const RaggedRows& encoder = batch.encoder();
  cuda::LaunchParams launch = LaunchParamsFor(x);
  launch.num_rows = encoder.num_rows();
  launch.tiles = batch.tables().encoder.tiles;
  launch.num_tiles = encoder.num_tiles();
  launch.longest_row = encoder.longest_row;
  return launch;
}

}  // namespace

at::Tensor EncoderAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const BidirectionalAttentionShape& shape, const StepBatch& batch) {
  const Backend backend = BackendOf(query, batch.execution());
  if (backend == Backend::kReference) return reference::EncoderAttention(query, key, value, shape, batch);
  const RaggedTables& tables = batch.tables().encoder;
  BidirectionalAttentionArgs args = CommonArgs(query, shape);
  args.rows = tables.rows;
  args.tiles = tables.tiles;
  args.lengths = tables.lengths;
  args.key = RowsOf(key);
  args.value = RowsOf(value);
  args.key_stride = key.stride(0);
  args.value_stride = value.stride(0);
  args.kv_heads = shape.q_heads;
  args.key_dim = shape.head_dim;
  args.value_dim = shape.head_dim;
  at::Tensor out = at::empty({query.size(0), args.q_heads * args.value_dim}, query.options());
  args.out = out.data_ptr();
  if (backend == Backend::kCuda) {
    const bool has_run = Launch(args, query, EncoderLaunchParams(query, batch), batch.execution());
    return has_run ? out : reference::EncoderAttention(query, key, value, shape, batch);
  }
  int64_t keys = 0;
  for (int64_t length : batch.encoder().lengths) keys += length * length;
  args.num_tiles = batch.encoder().num_tiles();
  const int64_t tile_bytes = kQueryTile * (args.key_dim + args.value_dim) * static_cast<int64_t>(sizeof(float));
  args.tiles_per_item = TilesPerItem(args.num_tiles * args.kv_heads, tile_bytes, batch.execution());
  RunTilesOnCpu(args, TypeOf(query), keys, batch.execution());
  return out;
}

void WriteCross(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch) {
  const Backend backend = BackendOf(key, batch.execution());
  if (backend == Backend::kReference) return reference::WriteCross(key, value, layer, batch);
  const RaggedTables& tables = batch.tables().encoder;
  const LayerCacheSlot& slot = batch.slot(layer);
  const KvSpec& kv = batch.group(slot.cross_group).kv;
  const WriteKvArgs args = {.kv = {.arena = batch.arena(),
                                   .blocks = tables.blocks[slot.cross_group],
                                   .storage = kv.dtype,
                                   .key = {.offset = slot.cross_key_offset, .scale_offset = 0, .dim = kv.key_dim},
                                   .value = {.offset = slot.cross_value_offset, .scale_offset = 0, .dim = kv.value_dim},
                                   .block_tokens = batch.block_tokens(),
                                   .kv_heads = kv.kv_heads},
                            .rows = tables.rows,
                            .key = RowsOf(key),
                            .value = RowsOf(value),
                            .key_stride = key.stride(0),
                            .value_stride = value.stride(0)};
  if (backend == Backend::kCuda) {
    return CheckLaunched(
        RunOnCuda(&cuda::Kernels::write_kv, TypeOf(key), args, EncoderLaunchParams(key, batch), batch.execution()));
  }
  const int64_t rows = batch.encoder().num_rows();
  RunOnCpu(&cpu::Kernels::write_kv, TypeOf(key), args, rows, key.size(0) * key.size(1) / std::max<int64_t>(1, rows),
           batch.execution());
}

at::Tensor CrossAttention(const at::Tensor& query, const BidirectionalAttentionShape& shape, const StepBatch& batch) {
  const Backend backend = BackendOf(query, batch.execution());
  if (backend == Backend::kReference) return reference::CrossAttention(query, shape, batch);
  const LayerCacheSlot& slot = batch.slot(shape.layer);
  const KvSpec& kv = batch.group(slot.cross_group).kv;
  BidirectionalAttentionArgs args = CommonArgs(query, shape);
  args.rows = batch.tables().decoder.rows;
  args.tiles = batch.tables().decoder.tiles;
  args.lengths = batch.tables().cross_lengths;
  args.blocks = batch.tables().decoder.blocks[slot.cross_group];
  args.arena = batch.arena();
  args.key_offset = slot.cross_key_offset;
  args.value_offset = slot.cross_value_offset;
  args.block_tokens = batch.block_tokens();
  args.kv_heads = kv.kv_heads;
  args.key_dim = kv.key_dim;
  args.value_dim = kv.value_dim;
  at::Tensor out = at::empty({query.size(0), args.q_heads * args.value_dim}, query.options());
  args.out = out.data_ptr();
  const std::vector<Row>& rows = batch.decoder().rows;
  const std::vector<int64_t>& lengths = batch.cross_lengths();
  if (backend == Backend::kCuda) {
    const LeadingRows& leading = batch.leading_rows();
    cuda::LaunchParams launch = LaunchParamsFor(query, batch);
    launch.split = SplitOf(leading, leading.cross_keys, args.q_heads, args.value_dim);
    const bool has_run = Launch(args, query, launch, batch.execution());
    return has_run ? out : reference::CrossAttention(query, shape, batch);
  }
  int64_t keys = 0;
  for (size_t r = 0; r < rows.size(); ++r) keys += rows[r].num_tokens * lengths[r];
  args.num_tiles = batch.num_tiles();
  args.tiles_per_item = 1;
  RunTilesOnCpu(args, TypeOf(query), keys, batch.execution());
  return out;
}

}  // namespace berth::ops
