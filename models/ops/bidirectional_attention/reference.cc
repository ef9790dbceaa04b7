// The attentions of encoder-decoder models in ATen: one row at a time, sums in float32.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <vector>

#include "models/ops/bidirectional_attention/bidirectional_attention.h"
#include "models/ops/reference_views.h"

namespace berth::reference {
namespace {

// Where a layer's keys and values lie in the blocks of `group`.
struct Place {
  int group;
  int64_t key_offset, value_offset;
};

Place CrossPlace(const StepBatch& batch, int layer) {
  const LayerCacheSlot& slot = batch.slot(layer);
  return {slot.cross_group, slot.cross_key_offset, slot.cross_value_offset};
}

struct KvView {
  at::Tensor key;    // [kv_heads, block_tokens, key_dim]
  at::Tensor value;  // [kv_heads, block_tokens, value_dim]
};

KvView BlockView(const StepBatch& batch, const Place& place, const ops::Blocks& blocks, int64_t block) {
  const KvSpec& kv = batch.group(place.group).kv;
  const int64_t unit = blocks.At(block);
  const at::ScalarType type = ScalarTypeOf(kv.dtype);
  return {ArenaView(batch, unit + place.key_offset, {kv.kv_heads, batch.block_tokens(), kv.key_dim}, type),
          ArenaView(batch, unit + place.value_offset, {kv.kv_heads, batch.block_tokens(), kv.value_dim}, type)};
}

// Keys and values of positions [0, length) of a row.
KvView Gather(const StepBatch& batch, const Place& place, const ops::Blocks& blocks, int64_t length) {
  std::vector<at::Tensor> keys;
  std::vector<at::Tensor> values;
  for (int64_t block = 0; block * batch.block_tokens() < length; ++block) {
    const KvView view = BlockView(batch, place, blocks, block);
    keys.push_back(view.key);
    values.push_back(view.value);
  }
  return {at::cat(keys, 1).narrow(1, 0, length), at::cat(values, 1).narrow(1, 0, length)};
}

// query: [queries, q_heads * dim] at positions start, start + 1, ...; kv: all that they may see.
at::Tensor Attend(const at::Tensor& query, const KvView& kv, const ops::BidirectionalAttentionShape& shape,
                  int64_t start) {
  const int64_t queries = query.size(0);
  const int64_t repeat = shape.q_heads / kv.key.size(0);
  const at::Tensor q = query.to(at::kFloat).reshape({queries, shape.q_heads, -1}).transpose(0, 1);
  const at::Tensor k = kv.key.to(at::kFloat).repeat_interleave(repeat, 0);
  const at::Tensor v = kv.value.to(at::kFloat).repeat_interleave(repeat, 0);
  at::Tensor scores = at::matmul(q * shape.scale, k.transpose(1, 2));
  const at::TensorOptions longs = at::TensorOptions().dtype(at::kLong).device(query.device());
  const at::Tensor distances =
      at::arange(k.size(1), longs).unsqueeze(0) - at::arange(start, start + queries, longs).unsqueeze(1);
  if (shape.distance_bias.defined()) {
    const int64_t reach = shape.distance_bias.size(1) / 2;
    const at::Tensor columns = at::clamp(distances, -reach, reach) + reach;
    scores = scores + shape.distance_bias.index_select(1, columns.flatten()).reshape(scores.sizes());
  }
  return at::matmul(at::softmax(scores, -1), v).transpose(0, 1).reshape({queries, -1}).to(query.scalar_type());
}

// [tokens, heads * dim] -> [heads, tokens, dim]
at::Tensor ByHead(const at::Tensor& x, int64_t heads) { return x.unflatten(1, {heads, -1}).transpose(0, 1); }

}  // namespace

at::Tensor EncoderAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const ops::BidirectionalAttentionShape& shape, const StepBatch& batch) {
  std::vector<at::Tensor> out;
  for (const ops::Row& row : batch.encoder().rows) {
    const KvView kv = {ByHead(RowSlice(key, row), shape.q_heads), ByHead(RowSlice(value, row), shape.q_heads)};
    out.push_back(Attend(RowSlice(query, row), kv, shape, /*start=*/0));
  }
  return at::cat(out, 0);
}

void WriteCross(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch) {
  const Place place = CrossPlace(batch, layer);
  const KvSpec& kv = batch.group(place.group).kv;
  const RaggedRows& encoder = batch.encoder();
  for (size_t r = 0; r < encoder.rows.size(); ++r) {
    const ops::Row& row = encoder.rows[r];
    for (int64_t done = 0; done < row.num_tokens; done += batch.block_tokens()) {
      const int64_t count = std::min(row.num_tokens - done, batch.block_tokens());
      const KvView view = BlockView(batch, place, encoder.blocks[place.group][r], done / batch.block_tokens());
      view.key.narrow(1, 0, count).copy_(ByHead(key.narrow(0, row.first_token + done, count), kv.kv_heads));
      view.value.narrow(1, 0, count).copy_(ByHead(value.narrow(0, row.first_token + done, count), kv.kv_heads));
    }
  }
}

at::Tensor CrossAttention(const at::Tensor& query, const ops::BidirectionalAttentionShape& shape,
                          const StepBatch& batch) {
  const Place place = CrossPlace(batch, shape.layer);
  std::vector<at::Tensor> out;
  for (size_t r = 0; r < batch.decoder().rows.size(); ++r) {
    const ops::Row& row = batch.decoder().rows[r];
    const KvView kv = Gather(batch, place, batch.decoder().blocks[place.group][r], batch.cross_lengths()[r]);
    out.push_back(Attend(RowSlice(query, row), kv, shape, row.start));
  }
  return at::cat(out, 0);
}

}  // namespace berth::reference
