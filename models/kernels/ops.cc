#include "models/kernels/ops.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "models/kernels/split_kv.h"
#include "models/ops/backend.h"
#include "models/ops/parallel.h"

namespace berth::ops {
namespace {

// out: what args.out is.
void RunRmsNorm(const RmsNormArgs& args, const at::Tensor& out) {
  if (BackendOf(out) == Backend::kCuda) {
    CheckLaunched(cuda::GetKernels()->rms_norm[TypeOf(out)](args, WorkOf(out)));
    return;
  }
  Parallel(out.size(0) * args.groups, args.dim * 4,
           [&](int64_t begin, int64_t end) { cpu::GetKernels().rms_norm[TypeOf(out)](args, begin, end); });
}

RmsNormArgs PlainNorm(const at::Tensor& x, const at::Tensor& out, const at::Tensor& weight, double eps) {
  const int64_t dim = weight.size(0);
  return {.x = RowsOf(x),
          .x_is_float = x.scalar_type() == at::kFloat,
          .out = out.data_ptr(),
          .weight = weight.const_data_ptr<float>(),
          .gate = nullptr,
          .x_stride = x.stride(0),
          .out_stride = out.stride(0),
          .gate_stride = 0,
          .groups = x.size(1) / dim,
          .dim = dim,
          .weight_per_group = false,
          .gate_first = false,
          .eps = static_cast<float>(eps)};
}

static_assert(kInt4Group == kInt4Group);

KvStorage StorageOf(DType dtype) {
  if (dtype == DType::kInt8) return KvStorage::kInt8;
  return dtype == DType::kInt4 ? KvStorage::kInt4 : KvStorage::kPlain;
}

// A layer's keys and values in the blocks of `group`, at these offsets of each.
KvLayout LayoutOf(int group, int64_t key_offset, int64_t value_offset, const StepBatch& batch) {
  const KvSpec& kv = batch.group(group).kv;
  const auto place = [&](int64_t offset, int64_t dim) -> KvPlace {
    return {.offset = offset,
            .scale_offset = offset + LayOutKvTensor(kv, dim, batch.block_tokens()).scale_offset,
            .dim = dim};
  };
  return {.arena = batch.arena(),
          .blocks = batch.tables().blocks[group],
          .storage = StorageOf(kv.dtype),
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

// Keys that the step's queries see, summed: the attention's cost.
int64_t VisibleKeys(const StepBatch& batch, const KvSpec& kv) {
  int64_t keys = 0;
  for (const Row& row : batch.rows()) {
    const int64_t length = row.start + row.num_tokens;
    keys += row.num_tokens * (kv.window > 0 ? std::min(kv.window + kv.sink_tokens, length) : length);
  }
  return keys;
}

// Whether there is code for these sizes.
bool RunOnCuda(const AttentionArgs& args, const at::Tensor& query, const StepBatch& batch) {
  const int64_t value_dim = args.kv.value.dim;
  const LeadingRows& leading = batch.leading_rows();
  const SplitKv split = SplitOf(leading, leading.keys, args.q_heads, value_dim);
  return LaunchSplit(cuda::GetKernels()->attention[TypeOf(query)], args, value_dim, split, query, WorkOf(query, batch));
}

at::Tensor RunActivation(const at::Tensor& x, const void* up, int64_t dim, Activation activation) {
  at::Tensor out = at::empty({x.size(0), dim}, x.options());
  const ActivationArgs args = {
      .x = RowsOf(x), .up = up, .out = out.data_ptr(), .stride = x.stride(0), .dim = dim, .activation = activation};
  if (BackendOf(x) == Backend::kCuda) {
    CheckLaunched(cuda::GetKernels()->activation[TypeOf(x)](args, WorkOf(x)));
    return out;
  }
  Parallel(x.size(0), dim * 16,
           [&](int64_t begin, int64_t end) { cpu::GetKernels().activation[TypeOf(x)](args, begin, end); });
  return out;
}

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (BackendOf(x) == Backend::kReference) return reference::RmsNorm(x, weight, eps);
  at::Tensor out = at::empty({x.size(0), x.size(1)}, x.options());
  RunRmsNorm(PlainNorm(x, out, weight, eps), out);
  return out;
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType type) {
  if (x.scalar_type() == type || BackendOf(x) != Backend::kCpu) return RmsNorm(x.to(type), weight, eps);
  TORCH_CHECK(x.scalar_type() == at::kFloat, "a norm rounds float32, not ", x.scalar_type());
  at::Tensor out = at::empty({x.size(0), x.size(1)}, x.options().dtype(type));
  RunRmsNorm(PlainNorm(x, out, weight, eps), out);
  return out;
}

void RmsNormInPlace(at::Tensor& x, const at::Tensor& weight, double eps) {
  if (BackendOf(x) == Backend::kReference) {
    x.copy_(reference::RmsNorm(x, weight, eps));
    return;
  }
  RunRmsNorm(PlainNorm(x, x, weight, eps), x);
}

at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        int64_t groups, bool gate_first) {
  if (BackendOf(x) == Backend::kReference) return reference::GatedRmsNorm(x, gate, weight, eps, groups, gate_first);
  at::Tensor out = at::empty({x.size(0), x.size(1)}, x.options());
  RmsNormArgs args = PlainNorm(x, out, weight, eps);
  args.groups = groups;
  args.dim = x.size(1) / groups;
  args.weight_per_group = true;
  args.gate = RowsOf(gate);
  args.gate_stride = gate.stride(0);
  args.gate_first = gate_first;
  RunRmsNorm(args, out);
  return out;
}

at::Tensor AddToStream(const at::Tensor& stream, const at::Tensor& x, double scale) {
  if (BackendOf(stream) != Backend::kCpu) return at::add(stream, x, scale);
  const bool in_float32 = stream.scalar_type() == at::kFloat;
  TORCH_CHECK(stream.sizes() == x.sizes() && (in_float32 || stream.scalar_type() == x.scalar_type()), "a stream of ",
              stream.sizes(), " ", stream.scalar_type(), " and ", x.sizes(), " ", x.scalar_type());
  at::Tensor out = at::empty({x.size(0), x.size(1)}, stream.options());
  const AddArgs args = {.x = RowsOf(stream),
                        .x_is_float = in_float32,
                        .y = RowsOf(x),
                        .out = out.data_ptr(),
                        .x_stride = stream.stride(0),
                        .y_stride = x.stride(0),
                        .dim = x.size(1),
                        .scale = static_cast<float>(scale)};
  Parallel(x.size(0), args.dim * 4,
           [&](int64_t begin, int64_t end) { cpu::GetKernels().add[TypeOf(x)](args, begin, end); });
  return out;
}

at::Tensor GatedActivation(const at::Tensor& gate_up, Activation activation) {
  if (BackendOf(gate_up) == Backend::kReference) return reference::GatedActivation(gate_up, activation);
  const int64_t dim = gate_up.size(1) / 2;
  return RunActivation(gate_up, RowsOf(gate_up.narrow(1, dim, dim)), dim, activation);
}

at::Tensor Activate(const at::Tensor& x, Activation activation) {
  TORCH_CHECK(activation != kClampedSwiglu, "this activation has two arguments");
  if (BackendOf(x) == Backend::kReference) return reference::Activate(x, activation);
  return RunActivation(x, /*up=*/nullptr, x.size(1), activation);
}

void Rotary(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& rows, int64_t head_dim) {
  const Backend backend = BackendOf(x);
  if (backend == Backend::kReference) return reference::Rotary(x, cos, sin, rows, head_dim);
  CheckRows(x);
  const RotaryArgs args = {.x = x.data_ptr(),
                           .rows = rows.const_data_ptr<int64_t>(),
                           .cos = cos.const_data_ptr<float>(),
                           .sin = sin.const_data_ptr<float>(),
                           .stride = x.stride(0),
                           .heads = x.size(1) / head_dim,
                           .head_dim = head_dim,
                           .rotary_dim = cos.size(1) * 2};
  if (backend == Backend::kCuda) {
    CheckLaunched(cuda::GetKernels()->rotary[TypeOf(x)](args, WorkOf(x)));
    return;
  }
  Parallel(x.size(0), x.size(1) * 4,
           [&](int64_t begin, int64_t end) { cpu::GetKernels().rotary[TypeOf(x)](args, begin, end); });
}

void WriteKv(const at::Tensor& key, const at::Tensor& value, int layer, const StepBatch& batch) {
  const Backend backend = BackendOf(key);
  if (backend == Backend::kReference) return reference::WriteKv(key, value, layer, batch);
  WriteKvArgs args = {.kv = LayoutOf(layer, batch),
                      .rows = batch.tables().rows,
                      .key = RowsOf(key),
                      .value = RowsOf(value),
                      .key_stride = key.stride(0),
                      .value_stride = value.stride(0)};
  const auto write = [&] {
    if (backend == Backend::kCuda) {
      CheckLaunched(cuda::GetKernels()->write_kv[TypeOf(key)](args, WorkOf(key, batch)));
      return;
    }
    Parallel(batch.num_rows(), batch.num_tokens() * key.size(1) / batch.num_rows(),
             [&](int64_t begin, int64_t end) { cpu::GetKernels().write_kv[TypeOf(key)](args, begin, end); });
  };
  write();
  if (batch.slot(layer).recent_group < 0) return;
  args.kv = RecentLayoutOf(layer, batch);
  write();
}

at::Tensor Attention(const at::Tensor& query, const AttentionShape& shape, const StepBatch& batch) {
  const Backend backend = BackendOf(query);
  if (backend == Backend::kReference) return reference::Attention(query, shape, batch);
  const int group = batch.slot(shape.layer).kv_group;
  AttentionArgs args = {.kv = LayoutOf(shape.layer, batch),
                        .rows = batch.tables().rows,
                        .tiles = batch.tables().tiles,
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
                        .scratch = nullptr,
                        .scratch_stride = 0};
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
    return RunOnCuda(args, query, batch) ? out : reference::Attention(query, shape, batch);
  }
  args.scratch = WorkerScratch(AttentionScratchFloats(args), &args.scratch_stride);

  const int64_t items = batch.num_tiles() * args.kv.kv_heads;
  const int64_t operations = VisibleKeys(batch, batch.group(group).kv) * shape.q_heads *
                             (args.kv.key.dim + args.kv.value.dim) / std::max<int64_t>(1, items);
  Parallel(items, operations, [&](int64_t begin, int64_t end, int thread) {
    cpu::GetKernels().attention[TypeOf(query)](args, begin, end, thread);
  });
  return out;
}

}  // namespace berth::ops
