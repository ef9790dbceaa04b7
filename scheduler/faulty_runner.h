// For tests: makes steps of a model fail (--fail_step_every). Engine thread only.
#ifndef BERTH_SCHEDULER_FAULTY_RUNNER_H_
#define BERTH_SCHEDULER_FAULTY_RUNNER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "models/model_runner.h"

namespace berth {

// Every n-th step fails: before the model runs it and after that, in turns.
class FaultyRunner final : public ModelRunner {
 public:
  // `runner` must outlive this. REQUIRES: every > 0.
  FaultyRunner(ModelRunner* runner, int64_t every) : runner_(runner), every_(every) {}

  absl::Status Run(const StepPlan& plan, StepResult* result) override {
    ++num_run_;
    const bool fails = num_run_ % every_ == 0;
    const bool ran = num_run_ / every_ % 2 == 0;
    const absl::Status error = absl::InternalError("a step was made to fail by --fail_step_every");
    if (fails && !ran) return error;
    const absl::Status status = runner_->Run(plan, result);
    return status.ok() && fails ? error : status;
  }

  const ModelInfo& info() const override { return runner_->info(); }
  int64_t num_device_allocations() const override { return runner_->num_device_allocations(); }
  int64_t num_graph_launches() const override { return runner_->num_graph_launches(); }
  int64_t num_graph_refusals() const override { return runner_->num_graph_refusals(); }

 private:
  ModelRunner* const runner_;
  const int64_t every_;
  int64_t num_run_ = 0;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_FAULTY_RUNNER_H_
