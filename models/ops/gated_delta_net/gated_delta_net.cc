#include "models/ops/gated_delta_net/gated_delta_net.h"

#include <ATen/ops/empty.h>

#include "models/ops/backend.h"
#include "models/ops/parallel.h"
#include "models/ops/state_phases.h"

namespace berth::ops {
namespace {

// Heads that share q and k in one item share their products too, where enough items remain for the threads.
int64_t HeadsPerItem(const DeltaNetShape& shape, const StatePhase& phase, const Execution& execution) {
  const bool chunked = TokensPerRow(phase) >= ChunkedFrom(kDeltaChunked, execution);
  const bool enough = phase.num_rows * shape.k_heads >= 2 * execution.num_threads();
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
                       .chunked_from = ChunkedFrom(kDeltaChunked, batch.execution()),
                       .beta_scale = static_cast<float>(shape.beta_scale),
                       .norm_eps = static_cast<float>(shape.norm_eps)};
  const int64_t state_bytes = shape.v_heads * shape.key_dim * shape.value_dim * static_cast<int64_t>(sizeof(float));
  const bool covered = RunPhases(batch, shape.layer, shape.state, state_bytes, &args, [&](const StatePhase& phase) {
    args.heads_per_item = HeadsPerItem(shape, phase, batch.execution());
    if (backend == Backend::kCuda) {
      return IsLaunched(
          RunOnCuda(&cuda::Kernels::delta_net, TypeOf(qkv), args, LaunchParamsFor(qkv, phase), batch.execution()));
    }
    RunOnCpu(&cpu::Kernels::delta_net, TypeOf(qkv), args, phase.num_rows * shape.v_heads / args.heads_per_item,
             TokensPerRow(phase) * args.heads_per_item * shape.key_dim * shape.value_dim * 6, batch.execution());
    return true;
  });
  return covered ? out : reference::GatedDeltaNet(qkv, a, b, rate, dt_bias, shape, batch);
}

}  // namespace berth::ops
