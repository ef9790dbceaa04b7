#include "models/sampling/sample_step.h"

#include <algorithm>
#include <vector>

#include "models/ops/backend.h"
#include "models/sampling/sampler.h"
#include "models/sampling/sampler_reference.h"
#include "models/step/thread_pool.h"

namespace berth {
namespace {

// Logits of one task: 7 microseconds of a greedy scan, and more of a draw; see models/ops/parallel.h.
constexpr int64_t kLogitsPerTask = 16384;

// Which of its row's drafts the i-th row of logits replaces; kAfterDrafts: it follows the last token.
int64_t DraftOf(int64_t i, absl::Span<const int> row_indices, const StepRow& row) {
  int64_t later = 0;
  while (i + later + 1 < static_cast<int64_t>(row_indices.size()) && row_indices[i + later + 1] == row_indices[i])
    ++later;
  return later == 0 ? kAfterDrafts : row.num_drafts() - later;
}

}  // namespace

StepSampler::StepSampler(Execution* execution)
    : execution_(execution), samplers_(execution->num_threads()), device_(execution) {}

void StepSampler::SampleOnDevice(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices,
                                 StepResult* result) {
  std::vector<RowResult> drafts(row_indices.size());
  std::vector<const StepRow*> rows;
  std::vector<RowResult*> results;
  std::vector<const uint32_t*> masks;
  for (size_t i = 0; i < row_indices.size(); ++i) {
    rows.push_back(&plan.rows[row_indices[i]]);
    const int64_t draft = DraftOf(static_cast<int64_t>(i), row_indices, *rows[i]);
    results.push_back(draft == kAfterDrafts ? &result->rows[row_indices[i]] : &drafts[i]);
    masks.push_back(MaskOf(*rows[i], draft));
  }
  const bool has_kernels = ops::BackendOf(logits, *execution_) == ops::Backend::kCuda;
  if (!has_kernels || !device_.Choose(logits, rows, masks, absl::MakeSpan(results))) {
    SampleRowsReference(logits.to(at::kFloat), rows, masks, absl::MakeSpan(results));
  }
  for (size_t i = 0; i < row_indices.size(); ++i) {
    const int64_t draft = DraftOf(static_cast<int64_t>(i), row_indices, *rows[i]);
    if (draft != kAfterDrafts) result->rows[row_indices[i]].verified_tokens[draft] = drafts[i].token;
  }
}

void StepSampler::SampleRows(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices,
                             StepResult* result) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(0) == static_cast<int64_t>(row_indices.size()) &&
                  (logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kBFloat16),
              "SampleRows: logits must be float32 or bfloat16 [", row_indices.size(), ", vocab]");
  result->rows.resize(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) result->rows[i].verified_tokens.resize(plan.rows[i].num_drafts());
  if (ops::BackendOf(logits, *execution_) != ops::Backend::kCpu) {
    SampleOnDevice(logits, plan, row_indices, result);
    return;
  }
  const at::Tensor dense = logits.to(at::kFloat).contiguous();
  const float* data = dense.const_data_ptr<float>();
  const size_t vocab = static_cast<size_t>(dense.size(1));
  const int64_t rows_per_task = std::max<int64_t>(1, kLogitsPerTask / std::max<int64_t>(1, dense.size(1)));
  ShareItems(execution_->threads, dense.size(0), rows_per_task, [&](int64_t begin, int64_t end, int thread) {
    Sampler& sampler = samplers_[thread];
    for (int64_t i = begin; i < end; ++i) {
      const StepRow& row = plan.rows[row_indices[i]];
      RowResult& out = result->rows[row_indices[i]];
      const int64_t draft = DraftOf(i, row_indices, row);
      if (draft == kAfterDrafts) {
        sampler.SampleRow({data + i * vocab, vocab}, row, &out);
      } else {
        RowResult one;
        sampler.SampleRow({data + i * vocab, vocab}, row, &one, draft);
        out.verified_tokens[draft] = one.token;
      }
    }
  });
}

}  // namespace berth
