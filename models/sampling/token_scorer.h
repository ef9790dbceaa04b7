// Computes the logprobs of a step's scored tokens (StepRow::scored), as their logits come. Engine thread only.
#ifndef BERTH_MODELS_SAMPLING_TOKEN_SCORER_H_
#define BERTH_MODELS_SAMPLING_TOKEN_SCORER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/sampling/sampler.h"
#include "models/step.h"
#include "models/step/execution.h"
#include "models/step/step_batch.h"

namespace berth {

class TokenScorer : public ScoredLogits {
 public:
  // `execution` must outlive it.
  explicit TokenScorer(Execution* execution);

  // Begins a step: sizes RowResult::scores of each row of `result`, which has one per row of the plan. Both must
  // outlive the step.
  void Begin(const StepPlan& plan, StepResult* result);
  // Fills the scores of these tokens. On the CPU the threads share them. Elsewhere ATen computes them, and they are
  // copied to the host.
  void Take(const at::Tensor& logits, int64_t first) override;

 private:
  // A scored token, and where its scores go.
  struct Place {
    int32_t token = 0;
    TokenLogprob* scores = nullptr;
    int64_t num_scores = 0;
  };
  void TakeFromDevice(const at::Tensor& logits, absl::Span<const Place> places) const;

  Execution* execution_;
  std::vector<Sampler> samplers_;  // by thread
  std::vector<Place> places_;      // of the step
};

}  // namespace berth

#endif  // BERTH_MODELS_SAMPLING_TOKEN_SCORER_H_
