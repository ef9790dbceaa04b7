#include "models/ops/gated_delta_net/gated_delta_net.h"

#include <ATen/ops/empty.h>

#include "models/ops/backend.h"
#include "models/ops/parallel.h"

namespace berth::ops {
namespace {

// Heads that share q and k in one item share their products too, where enough items remain for the threads.
int64_t HeadsPerItem(const DeltaNetShape& shape, const StepBatch& batch) {
  const bool chunked = TokensPerRow(batch) >= ChunkedFrom(kDeltaChunked, batch.execution());
  const bool enough = batch.num_rows() * shape.k_heads >= 2 * batch.execution().num_threads();
  return chunked && enough ? shape.v_heads / shape.k_heads : 1;
}

}  // namespace

at::Tensor GatedDeltaNet(const at::Tensor& qkv, const at::Tensor& a, const at::Tensor& b, const at::Tensor& rate,
                         const at::Tensor& dt_bias, const DeltaNetShape& shape, const StepBatch& batch) {
  const Backend backend = BackendOf(qkv, batch.execution());
  if (backend == Backend::kReference) return reference::GatedDeltaNet(qkv, a, b, rate, dt_bias, shape, batch);
  at::Tensor out = at::empty({qkv.size(0), shape.v_heads * shape.value_dim}, qkv.options());
  const LayerCacheSlot& slot = batch.slot(shape.layer);
  DeltaNetArgs args = {.arena = batch.arena(),
                       .rows = batch.tables().decoder.rows,
                       .units = batch.tables().units[slot.state_group],
                       .state_offset = slot.state_offsets[shape.state],
                       .qkv = RowsOf(qkv),
                       .a = RowsOf(a),
                       .b = RowsOf(b),
                       .rate = rate.const_data_ptr<float>(),
                       .dt_bias = dt_bias.const_data_ptr<float>(),
                       .out = out.data_ptr(),
                       .qkv_stride = qkv.stride(0),
                       .a_stride = a.stride(0),
                       .b_stride = b.stride(0),
                       .k_heads = shape.k_heads,
                       .v_heads = shape.v_heads,
                       .key_dim = shape.key_dim,
                       .value_dim = shape.value_dim,
                       .heads_per_item = HeadsPerItem(shape, batch),
                       .chunked_from = ChunkedFrom(kDeltaChunked, batch.execution()),
                       .beta_scale = static_cast<float>(shape.beta_scale),
                       .norm_eps = static_cast<float>(shape.norm_eps)};
  if (backend == Backend::kCuda) {
    const int result =
        RunOnCuda(&cuda::Kernels::delta_net, TypeOf(qkv), args, LaunchParamsFor(qkv, batch), batch.execution());
    return IsLaunched(result) ? out : reference::GatedDeltaNet(qkv, a, b, rate, dt_bias, shape, batch);
  }
  RunOnCpu(&cpu::Kernels::delta_net, TypeOf(qkv), args, batch.num_rows() * shape.v_heads / args.heads_per_item,
           TokensPerRow(batch) * args.heads_per_item * shape.key_dim * shape.value_dim * 6, batch.execution());
  return out;
}

}  // namespace berth::ops
