// Runs a recurrence over the step's rows, and copies its states where rows have marks. Engine thread only.
#ifndef BERTH_MODELS_OPS_STATE_PHASES_H_
#define BERTH_MODELS_OPS_STATE_PHASES_H_

#include <cstdint>

#include "models/step/step_batch.h"

namespace berth::ops {

// Copies `size_bytes` from byte `offset` of each unit that has a mark after the phase.
void CopyMarkedStates(const StepBatch& batch, const StatePhase& phase, int64_t offset, int64_t size_bytes);

// Calls run(phase) for each phase of the step, in order, with *args of that phase. State `state` of layer `layer` has
// `size_bytes`; it is copied between the phases. `run` returns false if no kernel covers the operation; then nothing
// more is run. REQUIRES: that depends on no phase.
template <typename Args, typename Run>
bool RunPhases(const StepBatch& batch, int layer, int state, int64_t size_bytes, Args* args, const Run& run) {
  const int64_t offset = batch.slot(layer).state_offsets[state];
  for (const StatePhase& phase : batch.phases()) {
    args->rows = phase.rows;
    args->units = phase.units;
    if (!run(phase)) return false;
    CopyMarkedStates(batch, phase, offset, size_bytes);
  }
  return true;
}

}  // namespace berth::ops

#endif  // BERTH_MODELS_OPS_STATE_PHASES_H_
