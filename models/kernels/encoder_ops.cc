#include "models/kernels/encoder_ops.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "models/kernels/parallel.h"

namespace berth::ops {
namespace {

// What the two attentions have in common; keys and values are still to be named.
cpu::SpanAttentionArgs CommonArgs(const at::Tensor& query, const SpanAttentionShape& shape,
                                  const std::vector<cpu::Row>& rows, const std::vector<int64_t>& tiles) {
  cpu::SpanAttentionArgs args = {};
  args.rows = rows.data();
  args.tiles = tiles.data();
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
at::Tensor Run(cpu::SpanAttentionArgs args, const at::Tensor& query, int64_t num_tiles, int64_t keys) {
  at::Tensor out = at::empty({query.size(0), args.q_heads * args.value_dim}, query.options());
  args.out = out.data_ptr();
  args.scratch_stride = cpu::SpanAttentionScratchFloats(args);
  args.scratch = WorkerScratch(args.scratch_stride);
  const int64_t items = num_tiles * args.kv_heads;
  const int64_t operations = keys * args.q_heads * (args.key_dim + args.value_dim) / std::max<int64_t>(1, items);
  Parallel(items, operations, [&](int64_t begin, int64_t end, int thread) {
    cpu::GetKernels().span_attention[TypeOf(query)](args, begin, end, thread);
  });
  return out;
}

int64_t NumTiles(const std::vector<int64_t>& tiles) { return static_cast<int64_t>(tiles.size()) / 2; }

}  // namespace

at::Tensor EncoderAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const SpanAttentionShape& shape, const StepBatch& batch) {
  if (!query.is_cpu()) return reference::EncoderAttention(query, key, value, shape, batch);
  const EncoderBatch& encoder = batch.encoder();
  cpu::SpanAttentionArgs args = CommonArgs(query, shape, encoder.rows, encoder.tiles);
  args.lengths = encoder.lengths.data();
  args.key = RowsOf(key);
  args.value = RowsOf(value);
  args.key_stride = key.stride(0);
  args.value_stride = value.stride(0);
  args.kv_heads = shape.q_heads;
  args.key_dim = shape.head_dim;
  args.value_dim = shape.head_dim;
  int64_t keys = 0;
  for (int64_t length : encoder.lengths) keys += length * length;
  return Run(args, query, NumTiles(encoder.tiles), keys);
}

void WriteCross(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch) {
  if (!key.is_cpu()) return reference::WriteCross(key, value, layer, batch);
  const EncoderBatch& encoder = batch.encoder();
  const LayerCacheSlot& slot = batch.slot(layer);
  const KvSpec& kv = batch.group(slot.cross_group).kv;
  const cpu::WriteKvArgs args = {.kv = {.arena = batch.arena(),
                                        .blocks = encoder.blocks[slot.cross_group].data(),
                                        .storage = cpu::KvStorage::kPlain,
                                        .key = {.offset = slot.cross_key_offset, .dim = kv.key_dim},
                                        .value = {.offset = slot.cross_value_offset, .dim = kv.value_dim},
                                        .block_tokens = batch.block_tokens(),
                                        .kv_heads = kv.kv_heads},
                                 .rows = encoder.rows.data(),
                                 .key = RowsOf(key),
                                 .value = RowsOf(value),
                                 .key_stride = key.stride(0),
                                 .value_stride = value.stride(0)};
  const int64_t rows = static_cast<int64_t>(encoder.rows.size());
  Parallel(rows, key.size(0) * key.size(1) / std::max<int64_t>(1, rows),
           [&](int64_t begin, int64_t end) { cpu::GetKernels().write_kv[TypeOf(key)](args, begin, end); });
}

at::Tensor CrossAttention(const at::Tensor& query, const SpanAttentionShape& shape, const StepBatch& batch) {
  if (!query.is_cpu()) return reference::CrossAttention(query, shape, batch);
  const LayerCacheSlot& slot = batch.slot(shape.layer);
  cpu::SpanAttentionArgs args = CommonArgs(query, shape, batch.rows(), batch.tiles());
  const KvSpec& kv = batch.group(slot.cross_group).kv;
  args.blocks = batch.blocks(slot.cross_group).data();
  args.arena = batch.arena();
  args.key_offset = slot.cross_key_offset;
  args.value_offset = slot.cross_value_offset;
  args.block_tokens = batch.block_tokens();
  args.kv_heads = kv.kv_heads;
  args.key_dim = kv.key_dim;
  args.value_dim = kv.value_dim;
  args.lengths = batch.cross_lengths().data();
  int64_t keys = 0;
  for (size_t r = 0; r < batch.rows().size(); ++r) keys += batch.rows()[r].num_tokens * batch.cross_lengths()[r];
  return Run(args, query, NumTiles(batch.tiles()), keys);
}

}  // namespace berth::ops
