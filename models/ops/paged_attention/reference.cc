// Attention in ATen: one row at a time, sums in float32, blocks gathered into tensors. Slow and plain on purpose.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>

#include "models/ops/paged_attention/paged_attention.h"
#include "models/ops/reference_views.h"

namespace berth::reference {
namespace {

// The keys, or the values, of one layer in one block; see KvTensor.
struct BlockTensor {
  DType dtype;
  int64_t dim;
  at::Tensor stored;  // [kv_heads, block_tokens, dim], of int4 half as many bytes
  at::Tensor scales;  // [kv_heads, block_tokens, groups], or undefined: not quantised

  // Neighbouring dimensions that share a scale: [first, first + count).
  struct Group {
    int64_t index, first, count;
  };
  std::vector<Group> Groups() const {
    const int64_t size = dtype == DType::kInt4 ? kInt4Group : dim;
    std::vector<Group> groups;
    for (int64_t first = 0; first < dim; first += size) {
      groups.push_back({first / size, first, std::min(size, dim - first)});
    }
    return groups;
  }
};

struct KvView {
  BlockTensor key, value;
};

// Where a layer's keys and values lie in the blocks of `group`.
struct Place {
  int group;
  int64_t key_offset, value_offset;
};

// The layer's own, then the newest tokens' in full precision, if it has them.
std::vector<Place> PlacesOf(const StepBatch& batch, int layer) {
  const LayerCacheSlot& slot = batch.slot(layer);
  std::vector<Place> places = {{slot.kv_group, slot.key_offset, slot.value_offset}};
  if (slot.recent_group >= 0) {
    places.push_back({slot.recent_group, slot.recent_key_offset, slot.recent_value_offset});
  }
  return places;
}

// Absolute block `block` of row `row`.
KvView BlockView(const StepBatch& batch, const Place& place, int64_t row, int64_t block) {
  const KvSpec& kv = batch.group(place.group).kv;
  const ops::Blocks& blocks = batch.decoder().blocks[place.group][row];
  const int64_t unit = blocks.At(block);
  const auto tensor = [&](int64_t offset, int64_t dim) {
    const int64_t numbers = kv.dtype == DType::kInt4 ? (dim + 1) / 2 : dim;
    BlockTensor t = {kv.dtype, dim, {}, {}};
    t.stored = ArenaView(batch, unit + offset, {kv.kv_heads, batch.block_tokens(), numbers}, ScalarTypeOf(kv.dtype));
    if (!IsQuantised(kv.dtype)) return t;
    const int64_t groups = static_cast<int64_t>(t.Groups().size());
    const int64_t scales = unit + offset + LayOutKvTensor(kv, dim, batch.block_tokens()).scale_offset;
    t.scales = ArenaView(batch, scales, {kv.kv_heads, batch.block_tokens(), groups}, at::kBFloat16);
    return t;
  };
  return {tensor(place.key_offset, kv.key_dim), tensor(place.value_offset, kv.value_dim)};
}

// x: [kv_heads, tokens, dim], to tokens `first`, ... of the block.
void Write(const at::Tensor& x, int64_t first, const BlockTensor& to) {
  const at::Tensor stored = to.stored.narrow(1, first, x.size(1));
  if (!to.scales.defined()) {
    stored.copy_(x);
    return;
  }
  const double steps = to.dtype == DType::kInt4 ? 7 : 127;
  for (const BlockTensor::Group& group : to.Groups()) {
    const at::Tensor numbers = x.narrow(2, group.first, group.count).to(at::kFloat);
    const at::Tensor largest = numbers.abs().amax(-1, /*keepdim=*/true);
    // By a tensor: by a number some devices multiply with its reciprocal.
    const at::Tensor scale = (largest / at::full_like(largest, steps)).to(at::kBFloat16);
    to.scales.narrow(1, first, x.size(1)).narrow(2, group.index, 1).copy_(scale);
    const at::Tensor divisor = scale.to(at::kFloat).masked_fill(scale == 0, 1);
    const at::Tensor q = (numbers / divisor).round().clamp(-steps, steps);
    if (to.dtype == DType::kInt8) {
      stored.copy_(q);
      continue;
    }
    const int64_t low = (group.count + 1) / 2;
    at::Tensor bytes = q.narrow(2, 0, low) + 8;
    bytes.narrow(2, 0, group.count - low).add_((q.narrow(2, low, group.count - low) + 8) * 16);
    stored.narrow(2, group.first / 2, low).copy_(bytes);
  }
}

// Tokens [0, count) of the block: [kv_heads, count, dim], float32.
at::Tensor Read(const BlockTensor& from, int64_t count) {
  const at::Tensor stored = from.stored.narrow(1, 0, count).to(at::kFloat);
  if (!from.scales.defined()) return stored;
  const at::Tensor scales = from.scales.narrow(1, 0, count).to(at::kFloat);
  if (from.dtype == DType::kInt8) return stored * scales;
  std::vector<at::Tensor> groups;
  for (const BlockTensor::Group& group : from.Groups()) {
    const int64_t low = (group.count + 1) / 2;
    const at::Tensor bytes = stored.narrow(2, group.first / 2, low);
    const at::Tensor high = (bytes / 16).floor();
    const at::Tensor q = at::cat({bytes - high * 16, high.narrow(2, 0, group.count - low)}, 2) - 8;
    groups.push_back(q * scales.narrow(2, group.index, 1));
  }
  return at::cat(groups, 2);
}

// All that one place holds of a row, and which of it each query must not read from there.
struct Gathered {
  at::Tensor keys, values;  // [kv_heads, n, dim]
  at::Tensor positions;     // [1, n]
  at::Tensor elsewhere;     // [queries, n]
};

// `newest`: the tokens that a query reads from the recent place, which is this one or not.
Gathered Gather(const StepBatch& batch, const Place& place, int64_t r, int64_t newest, bool recent) {
  const ops::Row& row = batch.decoder().rows[r];
  const int64_t end = row.start + row.num_tokens;
  const ops::Blocks& blocks = batch.decoder().blocks[place.group][r];
  std::vector<at::Tensor> keys, values;
  std::vector<int64_t> positions;
  for (int64_t b = 0; b * batch.block_tokens() < end; ++b) {
    if (b >= blocks.sink_blocks && b < blocks.sink_blocks + blocks.expired_blocks) continue;
    const KvView view = BlockView(batch, place, r, b);
    const int64_t count = std::min(batch.block_tokens(), end - b * batch.block_tokens());
    keys.push_back(Read(view.key, count));
    values.push_back(Read(view.value, count));
    for (int64_t i = 0; i < count; ++i) positions.push_back(b * batch.block_tokens() + i);
  }
  const auto options = at::TensorOptions().dtype(at::kLong).device(batch.device());
  const at::Tensor p = at::arange(row.start, end, options).unsqueeze(1);
  const at::Tensor j = at::tensor(positions, at::kLong).to(batch.device()).unsqueeze(0);
  return {at::cat(keys, 1), at::cat(values, 1), j, recent ? j <= p - newest : j > p - newest};
}

}  // namespace

void WriteKv(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch) {
  for (const Place& place : PlacesOf(batch, layer)) {
    const int64_t kv_heads = batch.group(place.group).kv.kv_heads;
    for (size_t r = 0; r < batch.decoder().rows.size(); ++r) {
      const ops::Row& row = batch.decoder().rows[r];
      for (int64_t done = 0; done < row.num_tokens;) {
        const int64_t position = row.start + done;
        const int64_t slot = position % batch.block_tokens();
        const int64_t count = std::min(row.num_tokens - done, batch.block_tokens() - slot);
        const KvView view = BlockView(batch, place, static_cast<int64_t>(r), position / batch.block_tokens());
        const auto put = [&](const at::Tensor& from, const BlockTensor& to) {
          Write(from.narrow(0, row.first_token + done, count).unflatten(1, {kv_heads, -1}).transpose(0, 1), slot, to);
        };
        put(key, view.key);
        put(value, view.value);
        done += count;
      }
    }
  }
}

at::Tensor Attention(const at::Tensor& query, const ops::AttentionShape& shape, const StepBatch& batch) {
  const std::vector<Place> places = PlacesOf(batch, shape.layer);
  const KvSpec& kv = batch.group(places[0].group).kv;
  const int64_t newest = places.size() > 1 ? batch.group(places[1].group).kv.window : 0;
  std::vector<at::Tensor> outputs;
  for (size_t r = 0; r < batch.decoder().rows.size(); ++r) {
    const ops::Row& row = batch.decoder().rows[r];
    std::vector<at::Tensor> keys, values, positions, elsewhere;
    for (size_t i = 0; i < places.size(); ++i) {
      const Gathered part = Gather(batch, places[i], static_cast<int64_t>(r), newest, /*recent=*/i == 1);
      keys.push_back(part.keys);
      values.push_back(part.values);
      positions.push_back(part.positions);
      elsewhere.push_back(part.elsewhere);
    }
    const int64_t repeat = shape.q_heads / kv.kv_heads;
    const at::Tensor k = at::cat(keys, 1).repeat_interleave(repeat, 0);    // [q_heads, n, key_dim]
    const at::Tensor v = at::cat(values, 1).repeat_interleave(repeat, 0);  // [q_heads, n, value_dim]
    const at::Tensor j = at::cat(positions, 1);
    const at::Tensor q =
        RowSlice(query, row).reshape({row.num_tokens, shape.q_heads, kv.key_dim}).transpose(0, 1).to(at::kFloat);
    at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * shape.scale;
    if (shape.softcap != 0) scores = (scores / shape.softcap).tanh() * shape.softcap;
    const auto options = at::TensorOptions().dtype(at::kLong).device(query.device());
    const at::Tensor p = at::arange(row.start, row.start + row.num_tokens, options).unsqueeze(1);
    if (shape.distance_bias.defined()) {
      const int64_t reach = shape.distance_bias.size(1) / 2;
      const at::Tensor columns = at::clamp(j - p, -reach, reach) + reach;
      scores = scores + shape.distance_bias.index_select(1, columns.flatten()).reshape(scores.sizes());
    }
    at::Tensor hidden = j > p;
    if (newest > 0) hidden = hidden.logical_or(at::cat(elsewhere, 1));
    if (kv.window > 0) hidden = hidden.logical_or((j <= p - kv.window).logical_and(j >= kv.sink_tokens));
    if (kv.chunk > 0) hidden = hidden.logical_or(j < p - p.remainder(kv.chunk));
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    if (shape.sinks.defined()) {
      const at::Tensor sinks = shape.sinks.view({-1, 1, 1}).expand({-1, row.num_tokens, 1});
      scores = at::cat({scores, sinks}, -1);
    }
    const at::Tensor probabilities = at::softmax(scores, -1).narrow(2, 0, k.size(1));
    const at::Tensor out = at::matmul(probabilities, v);  // [q_heads, tokens, value_dim]
    outputs.push_back(out.transpose(0, 1).reshape({row.num_tokens, -1}).to(query.scalar_type()));
  }
  return at::cat(outputs, 0);
}

}  // namespace berth::reference
