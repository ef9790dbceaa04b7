#include "models/ops/mamba/mamba.h"

#include <ATen/ops/empty.h>

#include "models/ops/backend.h"
#include "models/ops/parallel.h"
#include "models/ops/state_phases.h"

namespace berth::ops {
namespace {

// Heads that share one product of B and C: more save work, fewer leave more items to the threads.
int64_t HeadsPerItem(const Mamba2Shape& shape, const StatePhase& phase, const Execution& execution) {
  if (execution.chunk_invariant_scans) return 1;
  const int64_t group_heads = shape.heads / shape.groups;
  for (int64_t heads : {4, 2}) {
    const int64_t items = phase.num_rows * shape.heads / heads;
    if (group_heads % heads == 0 && items >= 2 * execution.num_threads()) return heads;
  }
  return 1;
}

}  // namespace

at::Tensor MambaScan(const MambaInputs& inputs, const at::Tensor& a, const at::Tensor& d, const at::Tensor& dt_bias,
                     int layer, int state, const StepBatch& batch) {
  const Backend backend = BackendOf(inputs.x, batch.execution());
  if (backend == Backend::kReference) return reference::MambaScan(inputs, a, d, dt_bias, layer, state, batch);
  at::Tensor out = at::empty({inputs.x.size(0), inputs.x.size(1)}, inputs.x.options());
  const LayerCacheSlot& slot = batch.slot(layer);
  MambaScanArgs args = {.arena = batch.arena(),
                        .state_offset = slot.state_offsets[state],
                        .x = RowsOf(inputs.x),
                        .gate = RowsOf(inputs.gate),
                        .dt = RowsOf(inputs.dt),
                        .b = RowsOf(inputs.b),
                        .c = RowsOf(inputs.c),
                        .a = a.const_data_ptr<float>(),
                        .d = d.const_data_ptr<float>(),
                        .dt_bias = dt_bias.const_data_ptr<float>(),
                        .out = out.data_ptr(),
                        .x_stride = inputs.x.stride(0),
                        .gate_stride = inputs.gate.stride(0),
                        .dt_stride = inputs.dt.stride(0),
                        .b_stride = inputs.b.stride(0),
                        .b_group_stride = inputs.b.stride(1),
                        .c_stride = inputs.c.stride(0),
                        .c_group_stride = inputs.c.stride(1),
                        .channels = inputs.x.size(1),
                        .state_dim = inputs.b.size(2),
                        .groups = inputs.b.size(1)};
  const int64_t state_bytes = args.state_dim * args.channels * static_cast<int64_t>(sizeof(float));
  const bool covered = RunPhases(batch, layer, state, state_bytes, &args, [&](const StatePhase& phase) {
    if (backend == Backend::kCuda) {
      return IsLaunched(RunOnCuda(&cuda::Kernels::mamba_scan, TypeOf(inputs.x), args, LaunchParamsFor(inputs.x, phase),
                                  batch.execution()));
    }
    RunOnCpu(&cpu::Kernels::mamba_scan, TypeOf(inputs.x), args, phase.num_rows * MambaTiles(args),
             TokensPerRow(phase) * kMambaTile * args.state_dim * 16, batch.execution());
    return true;
  });
  return covered ? out : reference::MambaScan(inputs, a, d, dt_bias, layer, state, batch);
}

at::Tensor Mamba2Scan(const at::Tensor& xbc, const at::Tensor& dt, const at::Tensor& a, const at::Tensor& d,
                      const at::Tensor& dt_bias, const Mamba2Shape& shape, const StepBatch& batch) {
  const Backend backend = BackendOf(xbc, batch.execution());
  if (backend == Backend::kReference) return reference::Mamba2Scan(xbc, dt, a, d, dt_bias, shape, batch);
  at::Tensor out = at::empty({xbc.size(0), shape.heads * shape.head_dim}, xbc.options());
  const LayerCacheSlot& slot = batch.slot(shape.layer);
  Mamba2ScanArgs args = {.arena = batch.arena(),
                         .state_offset = slot.state_offsets[shape.state],
                         .xbc = RowsOf(xbc),
                         .dt = RowsOf(dt),
                         .a = a.const_data_ptr<float>(),
                         .d = d.const_data_ptr<float>(),
                         .dt_bias = dt_bias.const_data_ptr<float>(),
                         .out = out.data_ptr(),
                         .xbc_stride = xbc.stride(0),
                         .dt_stride = dt.stride(0),
                         .heads = shape.heads,
                         .head_dim = shape.head_dim,
                         .state_dim = shape.state_dim,
                         .groups = shape.groups,
                         .chunked_from = ChunkedFrom(kMamba2Chunked, batch.execution()),
                         .dt_min = static_cast<float>(shape.dt_min),
                         .dt_max = static_cast<float>(shape.dt_max)};
  const int64_t state_bytes = shape.heads * shape.state_dim * shape.head_dim * static_cast<int64_t>(sizeof(float));
  const bool covered = RunPhases(batch, shape.layer, shape.state, state_bytes, &args, [&](const StatePhase& phase) {
    args.prompt_lengths = phase.lengths;
    args.heads_per_item = HeadsPerItem(shape, phase, batch.execution());
    if (backend == Backend::kCuda) {
      return IsLaunched(
          RunOnCuda(&cuda::Kernels::mamba2_scan, TypeOf(xbc), args, LaunchParamsFor(xbc, phase), batch.execution()));
    }
    RunOnCpu(&cpu::Kernels::mamba2_scan, TypeOf(xbc), args, phase.num_rows * shape.heads / args.heads_per_item,
             TokensPerRow(phase) * args.heads_per_item * shape.head_dim * shape.state_dim * 4, batch.execution());
    return true;
  });
  return covered ? out : reference::Mamba2Scan(xbc, dt, a, d, dt_bias, shape, batch);
}

}  // namespace berth::ops
