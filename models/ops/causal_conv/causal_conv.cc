#include "models/ops/causal_conv/causal_conv.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "models/ops/backend.h"
#include "models/ops/parallel.h"
#include "models/ops/state_phases.h"

namespace berth::ops {

at::Tensor CausalConv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int layer, int state,
                      const StepBatch& batch, ConvActivation activation) {
  const Backend backend = BackendOf(x, batch.execution());
  if (backend == Backend::kReference) return reference::CausalConv(x, weight, bias, layer, state, batch, activation);
  at::Tensor out = at::empty({x.size(0), x.size(1)}, x.options());
  const LayerCacheSlot& slot = batch.slot(layer);
  ConvArgs args = {.arena = batch.arena(),
                   .state_offset = slot.state_offsets[state],
                   .x = RowsOf(x),
                   .out = out.data_ptr(),
                   .weight = weight.const_data_ptr<float>(),
                   .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                   .x_stride = x.stride(0),
                   .channels = x.size(1),
                   .kernel = weight.size(0),
                   .activation = activation};
  const int64_t chunks = (args.channels + kConvChunk - 1) / kConvChunk;
  const int64_t state_bytes = (args.kernel - 1) * args.channels * x.element_size();
  RunPhases(batch, layer, state, state_bytes, &args, [&](const StatePhase& phase) {
    if (backend == Backend::kCuda) {
      CheckLaunched(RunOnCuda(&cuda::Kernels::conv, TypeOf(x), args, LaunchParamsFor(x, phase), batch.execution()));
      return true;
    }
    RunOnCpu(&cpu::Kernels::conv, TypeOf(x), args, phase.num_rows * chunks,
             TokensPerRow(phase) * std::min(args.channels, kConvChunk) * (args.kernel + 8), batch.execution());
    return true;
  });
  return out;
}

}  // namespace berth::ops
