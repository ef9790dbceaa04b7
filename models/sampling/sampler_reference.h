// The choice of tokens in ATen operations, sorting and in double: what runs where there is no faster kernel (CUDA), and
// the oracle of those that are. The rules are Sampler's (sampler.h). Engine thread only.
#ifndef BERTH_MODELS_SAMPLING_SAMPLER_REFERENCE_H_
#define BERTH_MODELS_SAMPLING_SAMPLER_REFERENCE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/types/span.h"
#include "models/step.h"

namespace berth {

// logits: [rows, vocab] float32 on any device. rows[i]->sampling must be set and valid; results[i] is filled for
// rows[i]. masks: that of each row, or null; empty: no row has one. One copy to the device and one back, which waits
// for the device; in between memory for some 60 bytes a logit of at most 32 rows. Throws c10::Error as ATen does.
void SampleRowsReference(const at::Tensor& logits, absl::Span<const StepRow* const> rows,
                         absl::Span<const uint32_t* const> masks, absl::Span<RowResult* const> results);

}  // namespace berth

#endif  // BERTH_MODELS_SAMPLING_SAMPLER_REFERENCE_H_
