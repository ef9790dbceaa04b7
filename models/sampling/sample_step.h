// Where the model runner hands over a step's logits: chooses the next token of every row that samples, by the fast path
// of the device they lie on.
#ifndef BERTH_MODELS_SAMPLING_SAMPLE_STEP_H_
#define BERTH_MODELS_SAMPLING_SAMPLE_STEP_H_

#include <ATen/core/Tensor.h>

#include "absl/types/span.h"
#include "models/step.h"

namespace berth {

// logits: [row_indices.size(), vocab], float32, any device; line i belongs to plan.rows[row_indices[i]], whose
// `sampling` must be set and valid. Those rows of `result` are filled; the others are left as they are, and
// result->rows is sized to the plan. On the CPU the rows are spread over the pool's threads, each with a Sampler of its
// own that lives as long as the thread. Elsewhere a CUDA kernel chooses, unless a row asks for logprobs or changes its
// logits (ChangesLogits): then SampleRowsReference does, for the whole step. Either waits for the device. Throws
// c10::Error as ATen does.
void SampleRows(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices, StepResult* result);

}  // namespace berth

#endif  // BERTH_MODELS_SAMPLING_SAMPLE_STEP_H_
