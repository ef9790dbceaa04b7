#include "models/sampling/sample_step.h"

#include <ATen/Parallel.h>

#include <vector>

#include "models/sampling/sampler.h"
#include "models/sampling/sampler_reference.h"

namespace berth {
namespace {

Sampler& ThreadSampler() {
  static thread_local Sampler sampler;  // scratch only: which thread takes a row changes nothing
  return sampler;
}

}  // namespace

void SampleRows(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices, StepResult* result) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(0) == static_cast<int64_t>(row_indices.size()) &&
                  logits.scalar_type() == at::kFloat,
              "SampleRows: logits must be float32 [", row_indices.size(), ", vocab]");
  result->rows.resize(plan.rows.size());
  if (!logits.is_cpu()) {
    std::vector<const StepRow*> rows;
    std::vector<RowResult*> results;
    for (int index : row_indices) {
      rows.push_back(&plan.rows[index]);
      results.push_back(&result->rows[index]);
    }
    SampleRowsReference(logits, rows, results);
    return;
  }
  const at::Tensor dense = logits.contiguous();
  const float* data = dense.const_data_ptr<float>();
  const size_t vocab = static_cast<size_t>(dense.size(1));
  at::parallel_for(0, dense.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int index = row_indices[i];
      ThreadSampler().SampleRow({data + i * vocab, vocab}, plan.rows[index], &result->rows[index]);
    }
  });
}

}  // namespace berth
