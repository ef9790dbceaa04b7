// Runs steps of a Model: fills the batch, computes, samples. The only place where torch's exceptions end.
// Engine thread only.
#ifndef BERTH_MODELS_RUNNER_TORCH_RUNNER_H_
#define BERTH_MODELS_RUNNER_TORCH_RUNNER_H_

#include <memory>
#include <utility>

#include "models/layers/model.h"
#include "models/model_runner.h"
#include "models/runner/decode_graphs.h"
#include "models/sampling/sample_step.h"
#include "models/sampling/state_pooler.h"
#include "models/sampling/token_scorer.h"
#include "models/step/step_batch.h"
#include "models/step/step_memory.h"

namespace berth {

class TorchRunner : public ModelRunner {
 public:
  // `model` must outlive the runner. `graphs`: null, none.
  TorchRunner(ModelInfo info, const Model* model, StepBatch batch, std::unique_ptr<DecodeGraphs> graphs)
      : info_(std::move(info)),
        model_(model),
        batch_(std::move(batch)),
        graphs_(std::move(graphs)),
        sampler_(&batch_.execution()),
        scorer_(&batch_.execution()) {
    batch_.set_readers(&scorer_, &pooler_);
  }
  TorchRunner(const TorchRunner&) = delete;
  TorchRunner& operator=(const TorchRunner&) = delete;

  const ModelInfo& info() const override { return info_; }
  absl::Status Run(const StepPlan& plan, StepResult* result) override;
  int64_t num_device_allocations() const override;
  int64_t num_graph_launches() const override { return graphs_ == nullptr ? 0 : graphs_->num_launches(); }
  int64_t num_graph_refusals() const override { return graphs_ == nullptr ? 0 : graphs_->num_refusals(); }

 private:
  ModelInfo info_;
  const Model* model_;
  StepBatch batch_;
  std::unique_ptr<DecodeGraphs> graphs_;
  StepSampler sampler_;
  TokenScorer scorer_;
  StatePooler pooler_;
  StepMemory memory_;
};

}  // namespace berth

#endif  // BERTH_MODELS_RUNNER_TORCH_RUNNER_H_
