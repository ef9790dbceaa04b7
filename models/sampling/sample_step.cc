#include "models/sampling/sample_step.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "models/kernels/paths.h"
#include "models/kernels/thread_pool.h"
#include "models/sampling/sampler.h"
#include "models/sampling/sampler_reference.h"

namespace berth {
namespace {

// Logits of one task: 7 microseconds of a greedy scan, and more of a draw; see models/kernels/parallel.h.
constexpr int64_t kLogitsPerTask = 16384;

Sampler& ThreadSampler() {
  static thread_local Sampler sampler;  // scratch only: which thread takes a row changes nothing
  return sampler;
}

// Which of its row's drafts the i-th row of logits replaces; -1: it follows the last token.
int64_t DraftOf(int64_t i, absl::Span<const int> row_indices, const StepRow& row) {
  int64_t later = 0;
  while (i + later + 1 < static_cast<int64_t>(row_indices.size()) && row_indices[i + later + 1] == row_indices[i])
    ++later;
  return later == 0 ? -1 : row.num_drafts - later;
}

// What the greedy kernel answers: the likeliest token, and nothing of probabilities.
bool IsPlainGreedy(const StepRow* row) {
  return row->sampling->temperature == 0.0f && row->sampling->num_logprobs < 0 && !ChangesLogits(*row);
}

// One copy back, which waits for the device.
void ChooseGreedily(const at::Tensor& logits, absl::Span<RowResult* const> results) {
  const at::Tensor dense = logits.contiguous();
  at::Tensor tokens = at::empty({dense.size(0)}, dense.options().dtype(at::kInt));
  const cuda::GreedyArgs args = {.logits = dense.const_data_ptr<float>(),
                                 .rows = dense.size(0),
                                 .stride = dense.size(1),
                                 .vocab = dense.size(1),
                                 .tokens = tokens.data_ptr<int32_t>(),
                                 .bad_token = RowResult::kBadLogits};
  ops::CheckLaunched(cuda::GetKernels()->greedy(args, ops::StreamOf(dense)));
  tokens = tokens.to(at::kCPU);
  for (size_t i = 0; i < results.size(); ++i) {
    *results[i] = {.token = tokens.const_data_ptr<int32_t>()[i],
                   .in_place_of_drafts = std::move(results[i]->in_place_of_drafts)};
  }
}

void SampleOnDevice(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices,
                    StepResult* result) {
  std::vector<RowResult> drafts(row_indices.size());
  std::vector<const StepRow*> rows;
  std::vector<RowResult*> results;
  for (size_t i = 0; i < row_indices.size(); ++i) {
    rows.push_back(&plan.rows[row_indices[i]]);
    const bool last = DraftOf(static_cast<int64_t>(i), row_indices, *rows[i]) < 0;
    results.push_back(last ? &result->rows[row_indices[i]] : &drafts[i]);
  }
  if (ops::PathOf(logits) == ops::Path::kCuda && std::all_of(rows.begin(), rows.end(), IsPlainGreedy)) {
    ChooseGreedily(logits, absl::MakeSpan(results));
  } else {
    SampleRowsReference(logits, rows, absl::MakeSpan(results));
  }
  for (size_t i = 0; i < row_indices.size(); ++i) {
    const int64_t draft = DraftOf(static_cast<int64_t>(i), row_indices, *rows[i]);
    if (draft >= 0) result->rows[row_indices[i]].in_place_of_drafts[draft] = drafts[i].token;
  }
}

}  // namespace

void SampleRows(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices, StepResult* result) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(0) == static_cast<int64_t>(row_indices.size()) &&
                  logits.scalar_type() == at::kFloat,
              "SampleRows: logits must be float32 [", row_indices.size(), ", vocab]");
  result->rows.resize(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) result->rows[i].in_place_of_drafts.resize(plan.rows[i].num_drafts);
  if (ops::PathOf(logits) != ops::Path::kCpu) {
    SampleOnDevice(logits, plan, row_indices, result);
    return;
  }
  const at::Tensor dense = logits.contiguous();
  const float* data = dense.const_data_ptr<float>();
  const size_t vocab = static_cast<size_t>(dense.size(1));
  const int64_t rows_per_task = std::max<int64_t>(1, kLogitsPerTask / std::max<int64_t>(1, dense.size(1)));
  ShareItems(dense.size(0), rows_per_task, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t i = begin; i < end; ++i) {
      const StepRow& row = plan.rows[row_indices[i]];
      RowResult& out = result->rows[row_indices[i]];
      const int64_t draft = DraftOf(i, row_indices, row);
      if (draft < 0) {
        ThreadSampler().SampleRow({data + i * vocab, vocab}, row, &out);
      } else {
        RowResult one;
        ThreadSampler().SampleRow({data + i * vocab, vocab}, row, &one);
        out.in_place_of_drafts[draft] = one.token;
      }
    }
  });
}

}  // namespace berth
