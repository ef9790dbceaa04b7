// Chooses the next token of every row that samples, from a step's logits, by the fastest way that their device has.
#ifndef BERTH_MODELS_SAMPLING_SAMPLE_STEP_H_
#define BERTH_MODELS_SAMPLING_SAMPLE_STEP_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/types/span.h"
#include "models/sampling/device_sampler.h"
#include "models/sampling/sampler.h"
#include "models/step.h"
#include "models/step/execution.h"

namespace berth {

class StepSampler {
 public:
  // `execution` must outlive it.
  explicit StepSampler(Execution* execution);

  // logits: [row_indices.size(), vocab], float32 or bfloat16, any device; line i belongs to plan.rows[row_indices[i]],
  // whose `sampling` must be set and valid. Only these rows of `result` are filled; the others are left as they are,
  // and result->rows is sized to the plan. Each row waits for its masks right before its choice. On the CPU the threads
  // share the rows. Elsewhere CUDA kernels choose (DeviceSampler), or SampleRowsReference where none covers the step:
  // without kernels, or where a row asks for more than 1,024 logprobs. Both wait for the device. Throws c10::Error as
  // ATen does.
  void SampleRows(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices,
                  StepResult* result);

 private:
  void SampleOnDevice(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices,
                      StepResult* result);

  Execution* execution_;
  std::vector<Sampler> samplers_;  // by thread; scratch only: which thread takes a row changes nothing
  DeviceSampler device_;
};

}  // namespace berth

#endif  // BERTH_MODELS_SAMPLING_SAMPLE_STEP_H_
