// The operations in ATen: one row at a time, sums in float32, blocks gathered into tensors. Slow and plain on purpose:
// the oracle of the kernel tests, and what devices without kernels of their own run.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "models/kernels/ops.h"
#include "models/kernels/reference_views.h"

namespace berth::reference {
namespace {

// The keys, or the values, of one layer in one block; see KvTensor.
struct BlockTensor {
  at::Tensor stored;  // [kv_heads, block_tokens, numbers]
  at::Tensor scales;  // [kv_heads, block_tokens, groups], or undefined: not quantised
};

struct KvView {
  BlockTensor key, value;
};

// Absolute block `block` of row `row`.
KvView BlockView(const StepBatch& batch, int layer, int64_t row, int64_t block) {
  const LayerCacheSlot& slot = batch.slot(layer);
  const KvSpec& kv = batch.group(slot.kv_group).kv;
  const cpu::Blocks& blocks = batch.blocks(slot.kv_group)[row];
  const int64_t unit = blocks.offsets[block - blocks.first_block];
  const auto tensor = [&](int64_t offset, int64_t dim) {
    BlockTensor t;
    t.stored = ArenaView(batch, unit + offset, {kv.kv_heads, batch.block_tokens(), dim}, ScalarTypeOf(kv.dtype));
    const int64_t scale_offset = LayOutKvTensor(kv, dim, batch.block_tokens()).scale_offset;
    if (scale_offset == 0) return t;
    t.scales = ArenaView(batch, unit + offset + scale_offset, {kv.kv_heads, batch.block_tokens(), 1}, at::kBFloat16);
    return t;
  };
  return {tensor(slot.key_offset, kv.key_dim), tensor(slot.value_offset, kv.value_dim)};
}

// x: [kv_heads, tokens, dim], to tokens `first`, ... of the block.
void Write(const at::Tensor& x, int64_t first, const BlockTensor& to) {
  const at::Tensor stored = to.stored.narrow(1, first, x.size(1));
  if (!to.scales.defined()) {
    stored.copy_(x);
    return;
  }
  constexpr double kSteps = 127;
  const at::Tensor largest = x.to(at::kFloat).abs().amax(-1, /*keepdim=*/true);
  // By a tensor: by a number some devices multiply with its reciprocal.
  const at::Tensor scale = (largest / at::full_like(largest, kSteps)).to(at::kBFloat16);
  to.scales.narrow(1, first, x.size(1)).copy_(scale);
  const at::Tensor divisor = scale.to(at::kFloat).masked_fill(scale == 0, 1);
  stored.copy_((x.to(at::kFloat) / divisor).round().clamp(-kSteps, kSteps));
}

// Tokens [0, count) of the block: [kv_heads, count, dim], float32.
at::Tensor Read(const BlockTensor& from, int64_t count) {
  const at::Tensor numbers = from.stored.narrow(1, 0, count).to(at::kFloat);
  return from.scales.defined() ? numbers * from.scales.narrow(1, 0, count).to(at::kFloat) : numbers;
}

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor grouped = x.to(at::kFloat).reshape({x.size(0), -1, weight.size(0)});
  const at::Tensor inverse = at::rsqrt(grouped.square().mean({-1}, /*keepdim=*/true) + eps);
  return (grouped * inverse * weight).reshape({x.size(0), x.size(1)}).to(x.scalar_type());
}

at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        int64_t groups, bool gate_first) {
  const at::Tensor factor = at::silu(gate.to(at::kFloat));
  const at::Tensor input = gate_first ? x.to(at::kFloat) * factor : x.to(at::kFloat);
  const at::Tensor grouped = input.reshape({x.size(0), groups, -1});
  const at::Tensor inverse = at::rsqrt(grouped.square().mean({-1}, /*keepdim=*/true) + eps);
  const at::Tensor normed = (grouped * inverse).reshape({x.size(0), x.size(1)}) * weight;
  return (gate_first ? normed : normed * factor).to(x.scalar_type());
}

at::Tensor GatedActivation(const at::Tensor& gate_up, ops::Activation activation) {
  const int64_t dim = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, dim).to(at::kFloat);
  const at::Tensor up = gate_up.narrow(1, dim, dim).to(at::kFloat);
  if (activation == ops::Activation::kClampedSwiglu) {
    const at::Tensor g = gate.clamp_max(7);
    return ((up.clamp(-7, 7) + 1) * g * at::sigmoid(g * 1.702)).to(gate_up.scalar_type());
  }
  return (ops::Activate(gate, activation) * up).to(gate_up.scalar_type());
}

void Rotary(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const std::vector<int64_t>& rows,
            int64_t head_dim) {
  const int64_t half = cos.size(1);
  const at::Tensor index = at::tensor(rows, at::TensorOptions().dtype(at::kLong)).to(x.device());
  const at::Tensor c = cos.index_select(0, index).unsqueeze(1);
  const at::Tensor s = sin.index_select(0, index).unsqueeze(1);
  const at::Tensor heads = x.unflatten(1, {-1, head_dim});  // a view of x
  const at::Tensor x1 = heads.narrow(2, 0, half).to(at::kFloat);
  const at::Tensor x2 = heads.narrow(2, half, half).to(at::kFloat);
  const at::Tensor rotated = at::cat({x1 * c - x2 * s, x2 * c + x1 * s}, 2);
  heads.narrow(2, 0, 2 * half).copy_(rotated);
}

void WriteKv(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch) {
  const KvSpec& kv = batch.group(batch.slot(layer).kv_group).kv;
  for (size_t r = 0; r < batch.rows().size(); ++r) {
    const cpu::Row& row = batch.rows()[r];
    for (int64_t done = 0; done < row.num_tokens;) {
      const int64_t position = row.start + done;
      const int64_t slot = position % batch.block_tokens();
      const int64_t count = std::min(row.num_tokens - done, batch.block_tokens() - slot);
      const KvView view = BlockView(batch, layer, static_cast<int64_t>(r), position / batch.block_tokens());
      const auto put = [&](const at::Tensor& from, const BlockTensor& to) {
        Write(from.narrow(0, row.first_token + done, count).unflatten(1, {kv.kv_heads, -1}).transpose(0, 1), slot, to);
      };
      put(key, view.key);
      put(value, view.value);
      done += count;
    }
  }
}

at::Tensor Attention(const at::Tensor& query, const ops::AttentionShape& shape, const StepBatch& batch) {
  const int group = batch.slot(shape.layer).kv_group;
  const KvSpec& kv = batch.group(group).kv;
  std::vector<at::Tensor> outputs;
  for (size_t r = 0; r < batch.rows().size(); ++r) {
    const cpu::Row& row = batch.rows()[r];
    const int64_t end = row.start + row.num_tokens;
    const int64_t first_block = batch.blocks(group)[r].first_block;
    const int64_t first = first_block * batch.block_tokens();
    std::vector<at::Tensor> keys, values;
    for (int64_t b = first_block; b * batch.block_tokens() < end; ++b) {
      const KvView view = BlockView(batch, shape.layer, static_cast<int64_t>(r), b);
      const int64_t count = std::min(batch.block_tokens(), end - b * batch.block_tokens());
      keys.push_back(Read(view.key, count));
      values.push_back(Read(view.value, count));
    }
    const int64_t repeat = shape.q_heads / kv.kv_heads;
    const at::Tensor k = at::cat(keys, 1).repeat_interleave(repeat, 0);    // [q_heads, n, key_dim]
    const at::Tensor v = at::cat(values, 1).repeat_interleave(repeat, 0);  // [q_heads, n, value_dim]
    const at::Tensor q =
        RowSlice(query, row).reshape({row.num_tokens, shape.q_heads, kv.key_dim}).transpose(0, 1).to(at::kFloat);
    at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * shape.scale;
    if (shape.softcap != 0) scores = (scores / shape.softcap).tanh() * shape.softcap;
    const auto options = at::TensorOptions().dtype(at::kLong).device(query.device());
    const at::Tensor p = at::arange(row.start, end, options).unsqueeze(1);
    const at::Tensor j = at::arange(first, end, options).unsqueeze(0);
    if (shape.distance_bias.defined()) {
      const int64_t reach = shape.distance_bias.size(1) / 2;
      const at::Tensor columns = at::clamp(j - p, -reach, reach) + reach;
      scores = scores + shape.distance_bias.index_select(1, columns.flatten()).reshape(scores.sizes());
    }
    at::Tensor hidden = j > p;
    if (kv.window > 0) hidden = hidden.logical_or(j <= p - kv.window);
    if (kv.chunk > 0) hidden = hidden.logical_or(j < p - p.remainder(kv.chunk));
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    if (shape.sinks.defined()) {
      const at::Tensor sinks = shape.sinks.view({-1, 1, 1}).expand({-1, row.num_tokens, 1});
      scores = at::cat({scores, sinks}, -1);
    }
    const at::Tensor probabilities = at::softmax(scores, -1).narrow(2, 0, end - first);
    const at::Tensor out = at::matmul(probabilities, v);  // [q_heads, tokens, value_dim]
    outputs.push_back(out.transpose(0, 1).reshape({row.num_tokens, -1}).to(query.scalar_type()));
  }
  return at::cat(outputs, 0);
}

at::Tensor CausalConv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int layer, int state,
                      const StepBatch& batch, ops::ConvActivation activation) {
  const int64_t channels = x.size(1);
  const int64_t history = weight.size(0) - 1;
  const at::Tensor filter = weight.t().unsqueeze(1);  // [channels, 1, kernel]
  std::vector<at::Tensor> outputs;
  for (size_t r = 0; r < batch.rows().size(); ++r) {
    const cpu::Row& row = batch.rows()[r];
    const at::Tensor view =
        StateView(batch, layer, state, static_cast<int64_t>(r), {history, channels}, x.scalar_type());
    const at::Tensor past = row.start == 0 ? at::zeros({history, channels}, x.options()) : view.clone();
    const at::Tensor input = at::cat({past, RowSlice(x, row)}, 0);
    at::Tensor out = at::conv1d(input.to(at::kFloat).t().unsqueeze(0), filter, bias, at::IntArrayRef{1},
                                at::IntArrayRef{0}, at::IntArrayRef{1}, channels);
    if (activation == ops::ConvActivation::kSilu) out = at::silu(out);
    outputs.push_back(out.squeeze(0).t().to(x.scalar_type()));
    view.copy_(input.narrow(0, row.num_tokens, history));
  }
  return at::cat(outputs, 0);
}

}  // namespace berth::reference
