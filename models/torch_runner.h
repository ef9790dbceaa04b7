// Runs steps of a Model: fills the batch, computes, samples. The only place where torch's exceptions end.
// Engine thread only.
#ifndef BERTH_MODELS_TORCH_RUNNER_H_
#define BERTH_MODELS_TORCH_RUNNER_H_

#include <utility>

#include "models/kernels/step_batch.h"
#include "models/kernels/thread_pool.h"
#include "models/layers/model.h"
#include "models/model_runner.h"
#include "models/step_memory.h"

namespace berth {

class TorchRunner : public ModelRunner {
 public:
  // `model` and `threads` must outlive the runner.
  TorchRunner(ModelInfo info, const Model* model, ThreadPool* threads, StepBatch batch)
      : info_(std::move(info)), model_(model), threads_(threads), batch_(std::move(batch)) {}

  const ModelInfo& info() const override { return info_; }
  absl::Status Run(const StepPlan& plan, StepResult* result) override;
  int64_t num_device_allocations() const override;

 private:
  ModelInfo info_;
  const Model* model_;
  ThreadPool* threads_;
  StepBatch batch_;
  StepMemory memory_;
};

}  // namespace berth

#endif  // BERTH_MODELS_TORCH_RUNNER_H_
