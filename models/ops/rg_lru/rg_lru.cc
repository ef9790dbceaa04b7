#include "models/ops/rg_lru/rg_lru.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "models/ops/backend.h"
#include "models/ops/parallel.h"
#include "models/ops/state_phases.h"

namespace berth::ops {

at::Tensor RgLru(const at::Tensor& x, const at::Tensor& gates, const RgLruWeights& weights, int layer, int state,
                 const StepBatch& batch) {
  const Backend backend = BackendOf(x, batch.execution());
  if (backend == Backend::kReference) return reference::RgLru(x, gates, weights, layer, state, batch);
  const int64_t block_width = gates.size(2) / 2;
  at::Tensor out = at::empty({x.size(0), x.size(1)}, x.options());
  const LayerCacheSlot& slot = batch.slot(layer);
  RgLruArgs args = {.arena = batch.arena(),
                    .state_offset = slot.state_offsets[state],
                    .x = RowsOf(x),
                    .gates = RowsOf(gates),
                    .input_bias = weights.input_bias.const_data_ptr<float>(),
                    .recurrence_bias = weights.recurrence_bias.const_data_ptr<float>(),
                    .rate = weights.rate.const_data_ptr<float>(),
                    .out = out.data_ptr(),
                    .x_stride = x.stride(0),
                    .gate_block_stride = gates.stride(1),
                    .gate_token_stride = gates.stride(0),
                    .width = x.size(1),
                    .block_width = block_width};
  const int64_t state_bytes = args.width * static_cast<int64_t>(sizeof(float));
  RunPhases(batch, layer, state, state_bytes, &args, [&](const StatePhase& phase) {
    if (backend == Backend::kCuda) {
      CheckLaunched(RunOnCuda(&cuda::Kernels::rg_lru, TypeOf(x), args, LaunchParamsFor(x, phase), batch.execution()));
      return true;
    }
    RunOnCpu(&cpu::Kernels::rg_lru, TypeOf(x), args, phase.num_rows * RgLruChunks(args),
             TokensPerRow(phase) * std::min(block_width, kRgLruChunk) * 60, batch.execution());
    return true;
  });
  return out;
}

}  // namespace berth::ops
