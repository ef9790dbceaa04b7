// Chooses the next tokens of a step's rows by CUDA kernels, by the rules of models/sampling/sampler.h. Engine thread
// only.
#ifndef BERTH_MODELS_SAMPLING_DEVICE_SAMPLER_H_
#define BERTH_MODELS_SAMPLING_DEVICE_SAMPLER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "models/ops/cuda_kernels.h"
#include "models/sampling/sample_args.h"
#include "models/step.h"
#include "models/step/execution.h"
#include "models/step/staging_buffer.h"

namespace berth {

class DeviceSampler {
 public:
  // `execution` must outlive it.
  explicit DeviceSampler(const Execution* execution) : execution_(execution) {}

  // logits: [rows.size(), vocab], float32 or bfloat16, where the kernels' memory is. masks: of each row, or null.
  // Fills token, logprob and top of the results: one launch, and one copy back, which waits for the device. False: no
  // kernel covers the rows, and nothing was done.
  bool Choose(const at::Tensor& logits, absl::Span<const StepRow* const> rows, absl::Span<const uint32_t* const> masks,
              absl::Span<RowResult* const> results);

 private:
  // Launch, and return what the kernel returns. The staging buffer was cleared, or filled by Describe.
  int Greedy(const at::Tensor& logits, absl::Span<const uint32_t* const> masks, const at::Tensor& out);
  int Sample(const at::Tensor& logits, absl::Span<const StepRow* const> rows, absl::Span<const uint32_t* const> masks,
             const at::Tensor& out);
  // Fills params_ and edits_, and stages what the edits refer to. Returns how many logprobs the rows ask for.
  int64_t Describe(absl::Span<const StepRow* const> rows, int64_t vocab);
  ops::LogitEdits Stage(const StepRow& row);

  const Execution* execution_;
  // The memory of these stays from step to step.
  StagingBuffer staging_;
  at::Tensor copy_;  // of staging_, on the device
  std::vector<ops::SampleParams> params_;
  std::vector<ops::LogitEdits> edits_;
  std::vector<ops::TokenBias> biases_;
};

}  // namespace berth

#endif  // BERTH_MODELS_SAMPLING_DEVICE_SAMPLER_H_
