// Sums the hidden states of a step's pooled tokens (StepRow::num_pooled), for embeddings of prompts. Engine thread
// only.
//
// A sum is in float64 and in the order of the tokens. Each step continues the sum of the step before. So chunks and
// other requests change no bit of it.
#ifndef BERTH_MODELS_SAMPLING_STATE_POOLER_H_
#define BERTH_MODELS_SAMPLING_STATE_POOLER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/step.h"
#include "models/step/step_batch.h"

namespace berth {

class StatePooler : public PooledStates {
 public:
  // Begins a step: sets RowResult::pooled of each row of `result`, which has one per row of the plan, to the sum so
  // far. `result` must outlive the step.
  void Begin(const StepPlan& plan, StepResult* result);
  // Adds these tokens to the sums of their rows, on the host.
  void Take(const at::Tensor& states, int64_t first) override;

 private:
  std::vector<std::vector<double>*> sums_;  // of the step, by pooled token
};

}  // namespace berth

#endif  // BERTH_MODELS_SAMPLING_STATE_POOLER_H_
